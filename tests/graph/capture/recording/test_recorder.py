"""What the recorder sees besides writes: chance, constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.errors import SpecializationWarning
from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, X, recorded

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
