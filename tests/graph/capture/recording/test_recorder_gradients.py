"""Gradients of a recorded graph stop and pass where those of the model do."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, Clamps, X


def gradients(module: nn.Module) -> list[Tensor | None]:
    module.zero_grad()
    module(X).sum().backward()
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def no_grad_block(y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = y.abs().mean()
    with torch.no_grad():
        offset = scale * 2 + y.detach().max()
    return y / scale + offset


@pytest.mark.parametrize(
    "function",
    [
        no_grad_block,
        lambda y: y * y.detach() + y.data,
        lambda y: y + (y.round() - y).detach(),
        lambda y: torch.no_grad()(lambda t: t * 2)(y) + y,
        lambda y: y.clone().requires_grad_() * 2,
    ],
)
def test_gradients_stop_where_the_model_stops_them(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).train()
    graph = copy.deepcopy(capture(model, X))
    for mine, theirs in zip(gradients(graph), gradients(model), strict=True):
        assert (mine is None) == (theirs is None) and (
            mine is None or theirs is None or torch.equal(mine, theirs)
        )


def clamps(y: Tensor) -> Tensor:
    with torch.no_grad():
        y.clamp_(-0.1, 0.1)
    return y * 2


def zeroes(y: Tensor) -> Tensor:
    with torch.no_grad():
        y[:, 0] = 0
    return y * 2


def replaces_data(y: Tensor) -> Tensor:
    y.data = y.data * 2
    return y * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Applies(clamps),
        lambda: Applies(zeroes),
        Clamps,
        pytest.param(
            lambda: Applies(replaces_data),
        ),
    ],
)
def test_a_write_without_gradients_leaves_the_gradients_of_the_tensor(make: Callable[[], nn.Module]) -> None:
    model = make().train()
    graph = copy.deepcopy(capture(model, X))
    mine, theirs = gradients(graph), gradients(model)
    assert all(
        one is not None and two is not None and torch.equal(one, two)
        for one, two in zip(mine, theirs, strict=True)
    )
