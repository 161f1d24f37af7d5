"""Sizes in a recorded run: which the graph follows, and which are fixed or refused."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import CapturedModule, capture
from tests.graph.capture.recording.applies import Applies

X = torch.randn(3, 4)


def fixed_size(graph: CapturedModule, argument: str, dim: int) -> str:
    """Why a dimension is fixed; every other size is refused in these words, with the line."""
    size = next(s for s in graph.capture_report.sizes if (s.argument, s.dim) == (argument, dim))
    assert not size.free
    return str(size)


def test_a_number_that_should_have_followed_a_size_fixes_it() -> None:
    graph = capture(Applies(lambda y: y * (0.5 * y.size(0))), X)
    assert "the number 1.5 is computed from it (3.0 at another size)" in fixed_size(graph, "x", 0)
    assert graph(X).shape == X.shape
    with pytest.raises(
        CaptureError, match="'x' has size 5 in dimension 0, which this graph was not captured for"
    ):
        graph(torch.ones(5, 4))


def test_a_number_that_should_have_followed_a_size_of_another_input_fixes_that() -> None:
    class Pair(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a * (0.5 * b.size(0))

    graph = capture(Pair(), (X, torch.ones(7)))
    assert "the number 3.5 is computed from it" in fixed_size(graph, "b", 0)
    assert graph(torch.ones(9, 4), torch.ones(7)).shape == (9, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.stack([row * 2 for row in y]),
        lambda y: torch.stack(y.unbind(0)),
        lambda y: torch.stack([part.sum() for part in y.split(2)]),
        lambda y: torch.cat(list(y.chunk(8, 0))),
        lambda y: sum(y[index] for index in range(len(y))),
        lambda y: sum(y[index] for index, _ in enumerate(y)),
        lambda y: functools.reduce(operator.add, y),
        lambda y: torch.stack([a + b for a, b in zip(y, y, strict=True)]),
        lambda y: torch.stack([*y]),
        lambda y: torch.stack(list(y)),
    ],
    ids=["iterate", "unbind", "split", "chunk", "range", "enumerate", "reduce", "zip", "star", "list"],
)
def test_a_loop_over_a_dimension_fixes_it(function: Callable[[Tensor], Tensor]) -> None:
    assert "test_record_sizes.py" in fixed_size(capture(Applies(function), X), "x", 0)


class Attention(nn.Module):
    """Takes one projection apart in all the ways models do; the number of parts is the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(x)
        a, b, c = y.reshape(x.size(0), 3, 4).permute(1, 0, 2).unbind(0)
        d, e, f = y.split(4, dim=-1)
        g, h = y.split([4, 8], dim=-1)
        i, j = y.chunk(2, dim=-1)
        return a + b + c + d + e + f + g + (i + j)[:, :4] + h[:, :4]


@pytest.mark.parametrize(
    "batch",
    [
        2,
        3,
        12,
    ],
)
def test_a_number_of_parts_that_is_the_models_own_is_not_warned_about(batch: int) -> None:
    model = Attention().eval()
    graph = capture(model, torch.randn(batch, 4))
    assert torch.equal(graph(torch.ones(5, 4)), model(torch.ones(5, 4)))


def test_sections_that_are_given_are_not_warned_about() -> None:
    class Sections(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            one, three = x.split([1, 3], dim=1)
            return one * three

    capture(Sections(), X)


def test_a_branch_on_a_size_that_would_go_another_way_is_an_error() -> None:
    def branches(y: Tensor) -> Tensor:
        if y.size(0) > 2:
            return y * 2
        return y * 3

    graph = capture(Applies(branches), X)
    assert torch.equal(graph(torch.ones(4, 4)), graph.linear(torch.ones(4, 4)) * 2)
    with pytest.raises(
        CaptureError, match="a branch on a size was True when the model was captured"
    ) as error:
        graph(torch.ones(1, 4))
    assert "branches: if y.size(0) > 2:" in str(error.value.where)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_fixed_sizes_are_not_warned_about(batch: int) -> None:
    class Checks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            if self.weight.size(0) != 4:
                raise ValueError
            return x @ self.weight / int(self.weight.shape[1]) ** 0.5

    graph = capture(Checks(), X)
    assert graph.capture_report.notes == []
    assert graph(torch.randn(batch, 4)).shape == (batch, 4)


def test_a_size_cached_in_an_earlier_call_fixes_it() -> None:
    @functools.lru_cache
    def half(n: int) -> int:
        return n // 2 + 1

    model = Applies(lambda y: y * half(y.size(0)))
    capture(model, X)  # fills the cache with a size of this recording
    assert "is computed from it" in fixed_size(capture(model, X), "x", 0)


def test_a_size_that_outlives_a_recording_that_was_given_up() -> None:
    cache: dict[str, int] = {}

    def remembers(y: Tensor) -> Tensor:
        n = cache.setdefault("n", y.size(0))
        y[:, 0].add_(1)  # y is read again: this recording is given up, and the next keeps the write
        return (y * 2).reshape(n, -1)

    model = Applies(remembers).eval()
    graph = capture(model, X)
    graph.graph.lint()
    assert torch.equal(graph(X), model(X))
