"""Below the torch API: operators of libraries, vmap and fused kernels are recorded or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, X


@torch.library.custom_op("sparsebit_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("sparsebit_tests::bump", mutates_args=("x",))
def bump(x: Tensor) -> None:
    x.add_(1)


def bumped(y: Tensor) -> Tensor:
    y = y * 1
    bump(y)
    return y * 2


@pytest.mark.parametrize(
    "function",
    [twice, lambda y: torch.ops.sparsebit_tests.twice(y), bumped, lambda y: torch.ops.aten.add.Tensor(y, y)],
)
def test_operators_of_libraries_are_nodes(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    graph = capture(model, X)
    x = torch.randn(7, 4)
    assert torch.equal(graph(x), model(x)) and not graph.capture_report.of_kind("constant")


def vmapped(y: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.reshape(2, 2) * 2 + row.sum())(y)


def test_what_slips_below_the_torch_api_is_recorded_there() -> None:
    model = Applies(vmapped).eval()
    graph = capture(model, X)
    assert torch.equal(graph(X * 3), model(X * 3)) and not graph.capture_report.of_kind("constant")
    with pytest.raises(CaptureError, match="the number 4 is computed from it"):
        graph(torch.cat([X, X]))


def test_modules_under_vmap_are_refused_or_kept_as_one_node() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda row: self.b(self.a(row)))(x)

    model = Rows().eval()
    with pytest.raises(CaptureError, match="does work that the recorder cannot see"):
        capture(model, X)
    kept = nn.Sequential(model)
    assert torch.equal(capture(kept, X, skip=["0"])(X * 2), model(X * 2))


def test_attention_equals_the_fused_kernel_to_rounding_and_the_module_exactly() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return result

    model, x = Attends().eval(), torch.randn(2, 6, 8)
    graph = capture(model, x)
    assert torch.equal(graph(x), model(x))
    with torch.no_grad():  # torch takes one fused kernel here, which rounds in another order
        torch.testing.assert_close(graph(x), model(x), rtol=1e-5, atol=1e-6)
