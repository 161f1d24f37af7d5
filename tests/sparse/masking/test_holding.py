"""Held zeros stay zeros: under every optimizer, for every reader of the weight, and no longer than the tensor lives."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

from sparsebit.sparse.masking import holding
from sparsebit.sparse.masking.holding import MaskError, hold, hold_zeros, mask_of, release

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_zeros_hold_even_when_the_mask_comes_late(name: str) -> None:
    model = nn.Linear(6, 5)
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer)  # momentum for all weights
    mask = torch.rand(5, 6) > 0.5
    hold(model.weight, mask)
    train(model, optimizer)
    assert torch.equal(model.weight != 0, mask)
    assert model.weight.grad is not None
    assert bool((model.weight.grad[~mask] == 0).all())


def test_whoever_reads_the_weight() -> None:
    """As training with fake-quantized weights does: the weight goes through a function first."""

    class Rounded(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            weight = self.layer.weight
            rounded = weight + ((weight / 0.1).round() * 0.1 - weight).detach()
            return nn.functional.linear(x, rounded, self.layer.bias)

    layer = nn.Linear(6, 4)
    mask = torch.rand(4, 6) > 0.5
    hold(layer.weight, mask)
    model = Rounded(layer)
    train(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    assert bool((layer.weight[~mask] == 0).all())
    assert bool((layer.weight[mask] != 0).any())


def test_a_new_mask_takes_the_place_of_the_old_one() -> None:
    weight = nn.Parameter(torch.ones(3))
    hold(weight, torch.tensor([True, False, True]))
    hold(weight, torch.tensor([True, True, False]))
    assert weight.tolist() == [1, 0, 0]
    weight.sum().backward()
    torch.optim.SGD([weight], lr=1.0).step()
    assert weight.tolist() == [0, -1, 0]


def test_what_is_released_moves_again() -> None:
    weight = nn.Parameter(torch.ones(2))
    hold(weight, torch.tensor([True, False]))
    release(weight)
    assert mask_of(weight) is None
    weight.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1]
    release(weight)  # twice does no harm


def test_infinite_values_become_zero_too() -> None:
    weight = nn.Parameter(torch.tensor([float("inf"), float("nan"), 1.0]))
    hold(weight, torch.tensor([False, False, True]))
    assert weight.tolist() == [0, 0, 1]


def test_the_zeros_of_a_copy() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    hold(model[0].weight, torch.rand(6, 6) > 0.5)
    twin = copy.deepcopy(model)
    masks = hold_zeros(twin)
    assert list(masks) == ["0.weight"]
    train(twin, torch.optim.Adam(twin.parameters()))
    assert torch.equal(twin[0].weight != 0, masks["0.weight"])


def test_masks_do_not_outlive_their_tensors() -> None:
    gc.collect()
    before = len(holding._MASKS)
    weight = nn.Parameter(torch.ones(2))
    hold(weight, torch.tensor([True, False]))
    assert len(holding._MASKS) == before + 1
    del weight
    gc.collect()
    assert len(holding._MASKS) == before


def test_a_mask_that_does_not_fit_is_refused() -> None:
    with pytest.raises(MaskError, match=r"expected: bool \[2\]"):
        hold(nn.Parameter(torch.ones(2)), torch.ones(3, dtype=torch.bool))
    with pytest.raises(MaskError, match="float32"):
        hold(nn.Parameter(torch.ones(2)), torch.ones(2))


def test_frozen_parameters_and_buffers_are_held_too() -> None:
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    hold(weight, torch.tensor([True, False]))
    assert weight.tolist() == [1, 0]
