"""Activations rounded to 8 bits, block by block, as long as the context lasts."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.llm.engines.rounding import Rounding, round_to_8_bits, rounded_inputs


def test_error_is_half_a_step_of_each_block() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 64)
    x[0, :32] = 0
    found = round_to_8_bits(x, Rounding(32, torch.float32))
    largest = x.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True).expand(3, 2, 32).flatten(1)
    assert ((found - x).abs() <= largest / 127 * 0.501).all() and not found[0, :32].any()
    assert not torch.equal(found, x) and (found - x).abs().max() > 0


def test_only_inside_the_context_and_only_for_these_layers() -> None:
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 4, bias=False))
    x = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    before = model(x)
    with rounded_inputs(model, {"1": Rounding(16, torch.float16)}):
        inside = model(x)
    assert torch.equal(inside, model[1](round_to_8_bits(model[0](x), Rounding(16, torch.float16))))
    assert not torch.equal(inside, before) and torch.equal(model(x), before)


def test_a_nudge_changes_few_values_by_one_step() -> None:
    x = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    rounding = Rounding(32, torch.float32)
    plain = round_to_8_bits(x, rounding)
    nudged = round_to_8_bits(x, rounding, torch.Generator().manual_seed(1))
    step = x.abs().amax(-1, keepdim=True) / 127
    moved = ((nudged - plain) / step).round()
    assert 0 < (moved != 0).float().mean() < 0.1 and moved.abs().max() == 1
