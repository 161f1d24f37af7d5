"""What the recorder sees: writes in place, numbers that leave the graph, chance, constants, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, X, recorded

# -- numbers that leave the graph ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda y: y if y.sum() > 0 else -y, "a branch on a tensor's value"),
        (lambda y: y * y.sum().item(), r"item\(\): a tensor's value as a Python number"),
        (lambda y: y * int(y.sum()), r"int\(\): a tensor's value as a Python number"),
        (lambda y: y * float(y.sum()), r"float\(\): a tensor's value as a Python number"),
        (lambda y: [y, -y][y.sum().long() * 0], "a tensor's value as an index"),
        (lambda y: torch.tensor(y.tolist()), r"tolist\(\): a tensor's values as Python numbers"),
        (lambda y: torch.from_numpy(y.detach().numpy()), r"numpy\(\): a tensor's values outside torch"),
        (lambda y: torch.from_numpy(numpy.asarray(y.detach()) * 2), "a tensor's value"),
        (lambda y: y if torch.equal(y, y) else -y, "equal: a tensor's value outside the graph"),
        (lambda y: y if torch.allclose(y, y) else -y, "allclose: a tensor's value outside the graph"),
        (
            lambda y: sum(row for row in y[y.sum(1) < 1e9]),
            "a Python loop over rows whose number depends on the data",
        ),
        (lambda y: y * len([row for row in torch.nonzero(y > -1e9)]), "a Python loop over rows"),
        (lambda y: y if (y > 0).any() and (y < 9).all() else -y, "a branch on a tensor's value"),
        (lambda y: y if max(y[0]) > 0 else -y, "a branch on a tensor's value"),
        (lambda y: {True: y, False: -y}[bool(y.max() < 1e9)], "a branch on a tensor's value"),
    ],
)
def test_a_number_taken_from_the_inputs_is_refused(function: Callable[[Tensor], Any], text: str) -> None:
    with pytest.raises(CaptureError, match=f"the model's control flow depends on its input data: .*{text}"):
        recorded(function)
    with pytest.warns(SpecializationWarning, match=f"{text}.* was fixed to what the example inputs gave"):
        graph = recorded(function, on_data="specialise")
    with torch.no_grad():
        assert graph(X).shape == Applies(function)(X).shape


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * torch.tensor(2.0).item(),
        lambda y: y * int(torch.ones(3).sum()),
        lambda y: y if torch.zeros(3, device=y.device).any() else -y,
        lambda y: y * float(y.new_full((1,), 3.0)),
        lambda y: y.view(*torch.tensor([2, 8]).tolist()),
        lambda y: y if y.is_floating_point() and y.dim() == 2 and y.is_contiguous() else -y,
        lambda y: y * y.stride(1) * y.element_size(),
        lambda y: (str(y), repr(y), f"{y.shape}", y)[-1],
        lambda y: y if y is not None and y in [y] else -y,
        lambda y: y[y.sum(1) > 0],
        lambda y: torch.where(y > 0, y, -y)[torch.nonzero(y[:, 0] < 99)[:, 0]],
    ],
)
def test_numbers_that_do_not_come_from_the_inputs_are_constants(function: Callable[[Tensor], Any]) -> None:
    model = Applies(function).eval()
    graph = capture(model, X)
    assert not graph.capture_report.of_kind("data", "random")
    assert torch.equal(graph(X * 2), model(X * 2))


def test_comparing_a_tensor_with_none_is_no_read() -> None:
    model = Applies(lambda y: y if y == None else -y).eval()  # noqa: E711
    assert torch.equal(capture(model, X)(X), model(X))


# -- chance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(1),
        lambda: torch.randn(1).abs().clamp(max=0.5),
        lambda: torch.randint(0, 1, (1,)),
        lambda: torch.rand_like(torch.ones(1)),
        lambda: torch.bernoulli(torch.zeros(1)),
        lambda: torch.normal(torch.zeros(1), 0.01),
        lambda: torch.randperm(1),
        lambda: torch.empty(1).uniform_(),
        lambda: torch.zeros(1).bernoulli_(0.0),
        lambda: torch.zeros(1).normal_(0, 0.01),
        lambda: torch.empty(1).exponential_(1e9),
        lambda: torch.multinomial(torch.ones(1), 1),
        lambda: torch.poisson(torch.zeros(1)),
        lambda: F.dropout(torch.ones(1) * 0.1, 0.5),
    ],
)
def test_a_random_choice_is_told(draw: Callable[[], Tensor]) -> None:
    with pytest.warns(SpecializationWarning, match="a random choice was fixed: a branch on a tensor's value"):
        recorded(lambda y: y * 2 if draw() < 2 else y)


def test_random_numbers_are_drawn_anew_in_the_graph() -> None:
    model = Applies(lambda y: y + torch.rand_like(y) + torch.randn(4)).eval()
    graph = capture(model, X)
    results = []
    for module in (graph, model):
        torch.manual_seed(7)
        results.append(module(X))
    assert torch.equal(*results) and not torch.equal(graph(X), results[0])
    assert graph.capture_report.notes == []


# -- constants -------------------------------------------------------------------------------------

TABLE = torch.arange(4.0)


def test_a_tensor_of_the_module_file_is_a_constant() -> None:
    graph = recorded(lambda y: y + TABLE)
    assert "a tensor of shape (4,)" in str(graph.capture_report.of_kind("constant")[0])
    assert torch.equal(graph._tensor_constant0, TABLE) and "_tensor_constant0" not in graph.state_dict()


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * numpy.float32(2.0) + numpy.int64(3) - numpy.float16(0.5),
        lambda y: y + torch.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda y: y + torch.tensor([numpy.float32(1.0)] * 4),
        lambda y: y / numpy.sqrt(2.0),
        lambda y: y.clamp(max=numpy.float64(0.5)),
        lambda y: y + torch.tensor(numpy.ones(4, dtype=numpy.float32)),
        lambda y: y + torch.as_tensor(numpy.ones(4, dtype=numpy.float32)),
    ],
)
def test_numbers_of_numpy_are_constants(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    assert torch.equal(capture(model, X)(X * 2), model(X * 2))


def test_an_array_that_stays_the_same_is_a_constant() -> None:
    model = Applies(lambda y: y + torch.from_numpy(numpy.ones(4, dtype=numpy.float32))).eval()
    graph = capture(model, X)
    assert torch.equal(graph(X * 2), model(X * 2))


# -- gradients -------------------------------------------------------------------------------------


# -- below the torch API ---------------------------------------------------------------------------


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
    with pytest.raises(CaptureError, match="the number 4 follows from it"):
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
