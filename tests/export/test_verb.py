"""The short verb: the path before the example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.export import ExportError, export_onnx, onnx_export
from sparsebit.export import verb as short_verb
from sparsebit.graph.capture import capture
from sparsebit.quantization.verb import quantize
from sparsebit.sparse import SparseModel
from tests.export.nets import close, initializers, run_file


def test_arguments_in_the_other_order_are_refused_with_the_right_one() -> None:
    net, x = torch.nn.Linear(4, 2).eval(), torch.zeros(2, 4)
    with pytest.raises(ExportError, match=r"not a path(.|\n)*export_onnx\(model, 'model.onnx', example\)"):
        short_verb.export_onnx(net, x, "a.onnx")  # type: ignore[arg-type]
    with pytest.raises(ExportError, match=r"not a path(.|\n)*export_onnx\(model, dummy_data, 'model.onnx'\)"):
        export_onnx(net, "a.onnx", x)  # type: ignore[arg-type]


def test_it_hands_everything_to_the_verb_it_is_short_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(onnx_export, "export_onnx", lambda *args, **named: seen.append((args, named)))
    net, x = torch.nn.Linear(4, 2).eval(), torch.zeros(2, 4)
    short_verb.export_onnx(net, tmp_path / "a.onnx", x, check=False)
    assert seen == [((net, x, tmp_path / "a.onnx"), {"check": False})]


class WithLoss(torch.nn.Module):
    """Takes labels, as many models of text do."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        answer = {"logits": self.head(x)}
        if labels is not None:
            answer["loss"] = torch.nn.functional.cross_entropy(answer["logits"], labels)
        return answer


def test_a_batch_of_the_calibration_data_is_an_example(tmp_path: Path) -> None:
    data = [{"x": torch.randn(8, 4), "labels": torch.randint(0, 3, (8,))} for _ in range(2)]
    qmodel = quantize(WithLoss().eval(), data, progress=False)
    done = short_verb.export_onnx(qmodel, tmp_path / "a.onnx", data[0])
    assert (done.exported.input_names, done.exported.output_names) == (("x",), ("logits",))


class Wrapped(torch.nn.Module):
    """Holds a model as ``model``, as trainers do, and computes more than it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances: torch.Tensor = self.model(x).softmax(-1)
        return chances


def test_what_is_exported_is_the_model_and_not_what_it_holds(tmp_path: Path) -> None:
    net, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval(),
        torch.randn(5, 4),
    )
    model = Wrapped(capture(net, (x,)))
    done = short_verb.export_onnx(model, tmp_path / "a.onnx", x)
    assert close(run_file(done.path, x)[0], model(x), 1e-5)
    qmodel = quantize(net, x, progress=False)
    with pytest.raises(SparsebitError, match=r"a QuantModel cannot be captured again\n +where: model"):
        short_verb.export_onnx(Wrapped(qmodel), tmp_path / "b.onnx", x)
    with pytest.raises(
        SparsebitError, match=r"cannot be captured again\n +where: model\n +next: +pass the Q"
    ):
        short_verb.export_onnx(Wrapped(qmodel.model), tmp_path / "b.onnx", x)
    done = short_verb.export_onnx(torch.nn.DataParallel(qmodel), tmp_path / "c.onnx", x)
    assert len(done.exported.tensors) == 4


def test_a_pruned_model_is_exported_small_or_refused(tmp_path: Path) -> None:
    net, x = (
        torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval(),
        torch.randn(5, 4),
    )
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l2norm", "RATIO": 0.5, "ROUND_TO": 1}}
    smodel = SparseModel(net, config, (x,))
    with pytest.raises(SparsebitError, match="nothing is pruned yet"):
        short_verb.export_onnx(smodel, tmp_path / "a.onnx", x)
    smodel.calc_params()
    done = short_verb.export_onnx(smodel, tmp_path / "a.onnx", x)
    assert list(initializers(done.path)["0.bias"].dims) == [4]
