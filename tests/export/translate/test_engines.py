"""The first engine whose translation computes what the graph computes is taken; what failed is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export import ExportError, export_graph
from sparsebit.export.translate.engines import _require_equal
from sparsebit.graph.functional import check_branch


class Counter(nn.Module):
    """Writes into a buffer as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x.mean(0))
        return self.fc(x) + self.total  # type: ignore[no-any-return]


def test_a_model_that_writes_its_state_goes_through_torch_export_and_stays_as_it_was(tmp_path: Path) -> None:
    model, x = Counter().eval(), torch.randn(2, 4)
    graph = capture(model, (x,))
    before = graph.get_buffer("total").clone()
    done = export_graph(graph, (x,), path=tmp_path / "net.onnx")
    assert done.engine == "program" and torch.equal(graph.get_buffer("total"), before)


def test_a_model_that_draws_random_numbers_is_not_compared(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    x = torch.randn(2, 4)
    assert export_graph(capture(Noisy(), (x,)), (x,), path=tmp_path / "net.onnx").engine == "script"


def test_what_each_engine_said_is_told(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x)

    x = torch.randn(2, 4)
    with pytest.raises(ExportError, match="no exporter could translate this graph") as caught:
        export_graph(capture(Odd(), (x,)), (x,), path=tmp_path / "net.onnx")
    assert (
        "script:" in str(caught.value) and "program:" in str(caught.value) and "bessel" in str(caught.value)
    )


def test_a_translation_that_computes_something_else_is_refused() -> None:
    wanted = [torch.ones(2, 3)]
    _require_equal([torch.ones(2, 3).numpy()], wanted)
    for got, words in (
        ([], "has 0 outputs instead of 1"),
        ([torch.ones(3, 2).numpy()], r"output 0 of the translation has shape \(3, 2\) instead of \(2, 3\)"),
        ([1.1 * torch.ones(2, 3).numpy()], "output 0 of the translation differs by 1.0e-01"),
    ):
        with pytest.raises(ExportError, match=words):
            _require_equal(got, wanted)


def test_a_check_inside_a_model_does_not_make_it_one_that_writes(tmp_path: Path) -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.size(0) < 1000 else x

    x = torch.randn(2, 4)
    graph = capture(Checked(), (x,))
    assert any(node.target is check_branch for node in graph.graph.nodes)
    assert export_graph(graph, (x,), path=tmp_path / "net.onnx").engine == "script"


def test_float64_without_kernels_is_advised_to_be_float32(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    graph = capture(nn.Conv2d(2, 2, 3).double().eval(), x)
    with pytest.raises(ExportError, match=r"no exporter could translate(.|\n)*call .float\(\) on the model"):
        export_graph(graph, (x,), path=tmp_path / "net.onnx", engine="script", dynamic_axes=None)
