"""The check finds what is wrong with a file, and says what runs on integers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from sparsebit.export import CheckReport, Exported, ExportError, check, export_graph
from sparsebit.export.numbers import unexplained
from sparsebit.quantization import QuantModel
from tests.export.nets import Residual, config, quantized, run_file
from tests.runtime.aborting import aborting_runtime

Made = tuple[QuantModel, Exported, Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    return qmodel, export_graph(qmodel.model, (x,), path=tmp_path_factory.mktemp("check") / "net.onnx"), x


def test_a_good_file_agrees_and_runs_on_integers(made: Made) -> None:
    qmodel, done, x = made
    report = check(qmodel.model, done, [((x,), {}), ((x[:1],), {})])
    assert report.ok and report.raise_for_mismatch() is report
    assert {op.runs_as for op in report.ops} == {
        "QLinearConv",
        "QLinearAdd",
        "QLinearGlobalAveragePool",
        "QGemm",
    }
    assert report.mismatch_share < 1e-3 and max(t.largest for t in report.tensors) <= 1
    assert report.outputs[0].piece_error < 1e-2 and report.outputs[0].sqnr_db > 30
    text = str(report)
    lines = text.splitlines()
    assert (
        lines[1].startswith("  end to end: largest difference ")
        and "same class 5 of 5, on 5 samples" in lines[1]
    )
    assert lines[2].startswith("  piece by piece: every piece gives the same results as torch; ")
    assert (
        lines[3].endswith("planned operators run on integers")
        and "stem/Conv" in text
        and "QLinearConv" in text
    )
    summary = report.summary()
    assert (
        list(summary)[:3] == ["ok", "end_to_end", "piece_by_piece"]
        and summary["end_to_end"][0]["samples"] == 5
    )


def test_end_to_end_is_what_a_user_would_measure(made: Made) -> None:
    qmodel, done, x = made
    found = check(qmodel.model, done, [((x,), {})]).outputs[0]
    file = run_file(done.path, x)[0]
    wanted = qmodel(x).detach().numpy()
    assert found.difference == pytest.approx(np.abs(file - wanted).max(), abs=1e-6)
    assert found.relative == pytest.approx(np.abs(file - wanted).max() / np.abs(wanted).max(), abs=1e-6)
    assert found.piece_error is not None and found.piece_error <= found.relative + 1e-6


def test_a_tensor_that_is_not_in_the_file_is_an_error(made: Made, tmp_path: Path) -> None:
    def unquantize(proto: onnx.ModelProto) -> None:
        nodes = [n for n in proto.graph.node if not n.name.startswith("relu/")]
        codes = {n.output[0]: n.input[0] for n in proto.graph.node if n.name.startswith("relu/")}
        for node in nodes:
            for place, name in enumerate(node.input):
                while name in codes:
                    name = codes[name]
                node.input[place] = name
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)

    report = check(made[0].model, sabotaged(made[1], tmp_path, unquantize), [((made[2],), {})])
    assert not report.ok and "activation 'relu' is not in the file" in report.problems


def sabotaged(done: Exported, folder: Path, change: Any) -> Exported:
    proto = onnx.load(str(done.path))
    change(proto)
    path = folder / "broken.onnx"
    onnx.save(proto, str(path))
    return replace(done, path=path)


def scaled(name: str, factor: float) -> Any:
    def change(proto: onnx.ModelProto) -> None:
        tensor = next(t for t in proto.graph.initializer if t.name == name)
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array((array * factor).astype(array.dtype), name))

    return change


@pytest.mark.parametrize(
    ("name", "factor", "blamed"),
    [
        ("relu.scale", 1.003, "relu"),
        ("stem.weight.scale", 1 + 1e-6, "stem.weight"),
        ("a.bias", 1.02, "relu_1"),
        ("fc.bias.codes", 1.05, "output"),
    ],
)
def test_a_wrong_number_in_the_file_is_an_error(
    name: str, factor: float, blamed: str, made: Made, tmp_path: Path
) -> None:
    qmodel, done, x = made
    report = check(qmodel.model, sabotaged(done, tmp_path, scaled(name, factor)), [((x,), {})])
    assert not report.ok and any(repr(blamed) in problem for problem in report.problems), report.problems
    with pytest.raises(ExportError, match="does not compute in onnxruntime"):
        report.raise_for_mismatch()


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_kernel_that_gives_other_codes_is_an_error(
    made: Made, monkeypatch: pytest.MonkeyPatch, everywhere: bool
) -> None:
    """As one would that overflows: the file is right, and its user would still get other numbers.

    If only the file that is cut at every tensor has such a kernel, its user gets the right ones.
    """
    import sys

    module = sys.modules[check.__module__]
    opener = module.open_session

    def overflowing(*args: Any, optimize: str = "all", **rest: Any) -> Any:
        session = opener(*args, optimize=optimize, **rest)

        def shifted(feed: Any) -> dict[str, Any]:
            found = session.execute(feed)
            pieces = sum(name.endswith(".given") for name in feed)
            wrong = optimize == "all" and "relu.codes" in found and (everywhere or pieces > 2)
            return found | {"relu.codes": found["relu.codes"] ^ 4} if wrong else found

        return replace(session, execute=shifted)

    monkeypatch.setattr(module, "open_session", overflowing)
    report = check(made[0].model, made[1], [((made[2],), {})])
    assert report.ok == (not everywhere)
    if everywhere:
        said = "the file is right, but the integer kernel of onnxruntime gives other quantized"
        assert said in report.problems[0]
    assert {t.name: t.blame for t in report.tensors if t.blame} == ({"relu": "kernel"} if everywhere else {})


def test_a_code_is_explained_by_how_near_its_number_is(made: Made) -> None:
    assert unexplained([3, 4], [3.51, 3.49], 0.02, (0, 255)) == 0
    assert unexplained([3, 4], [3.53, 3.47], 0.02, (0, 255)) == 2
    assert unexplained([0, 255], [-9.0, 300.0], 0.02, (0, 255)) == 0
    assert unexplained([1, 254], [-9.0, 300.0], 0.02, (0, 255)) == 2


def test_weights_in_a_second_file_are_checked_too(made: Made, tmp_path: Path) -> None:
    qmodel, _, x = made
    split = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", external_data=True)
    report = check(qmodel.model, split, [((x,), {})])
    assert report.ok and len(report.tensors) == len(split.tensors) and not report.fallbacks
    data = bytearray(split.files[1].read_bytes())
    data[len(data) // 2] ^= 16
    split.files[1].write_bytes(data)
    assert not check(qmodel.model, split, [((x,), {})]).ok


def test_reasons_for_float(tmp_path: Path) -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.up = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.up(self.conv(x))

    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Ends(), x, config(BACKEND="virtual"))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    why = {op.name: op.why for op in check(qmodel.model, done, [((x,), {})]).fallbacks}
    assert why["up/ConvTranspose"] == "ONNX Runtime has no integer kernel for ConvTranspose"
    wide = quantized(Ends(), x, config(a={"bits": 16}, BACKEND="virtual"))
    done = export_graph(wide.model, (x,), path=tmp_path / "net.onnx")
    why = {op.name: op.why for op in check(wide.model, done, [((x,), {})]).fallbacks}
    assert why["conv/Conv"] == "only 8-bit values have integer kernels"


def test_openvino_computes_the_same(made: Made) -> None:
    pytest.importorskip("openvino")
    qmodel, done, x = made
    report = check(qmodel.model, done, [((x,), {})], runtime="openvino")
    assert report.ok and report.runtime == "openvino" and report.outputs[0].sqnr_db > 20
    assert {t.name for t in report.tensors} == set(done.tensors)
    assert report.mismatch_share < 1e-3 and not any(t.blame for t in report.tensors)


def test_openvino_is_held_to_the_same(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    qmodel, done, x = made
    broken = sabotaged(done, tmp_path, scaled("relu.scale", 1.01))
    report = check(qmodel.model, broken, [((x,), {})], runtime="openvino")
    assert not report.ok and "'relu'" in report.problems[0]


def test_a_check_needs_a_call(made: Made) -> None:
    with pytest.raises(ExportError, match="at least one call"):
        check(made[0].model, made[1], [])


def test_an_empty_report_is_fine() -> None:
    assert CheckReport(path=Path("x.onnx"), runtime="onnxruntime").ok


def test_a_runtime_that_aborts_on_the_file_is_an_export_error(made: Made) -> None:
    qmodel, done, x = made
    with aborting_runtime(), pytest.raises(ExportError, match="ended with SIGABRT: bad shape") as caught:
        check(qmodel.model, done, [((x,), {})])
    assert caught.value.where == "net.onnx" and "check=False" in str(caught.value.hint)
