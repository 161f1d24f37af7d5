"""Calibration in bfloat16: close to float32, in float32 between blocks, and only where it was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.weights.half_products import multiplies_bfloat16_faster, rough_product
from sparsebit.llm.weights.uses import Use, WatchWeights


@pytest.mark.parametrize("fast", [False, True])
def test_rough_products_are_made_of_what_the_processor_multiplies_faster(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": fast})
    assert multiplies_bfloat16_faster(torch.device("cpu")) is fast
    assert multiplies_bfloat16_faster(torch.device("cuda"))
    torch.manual_seed(0)
    a, b = torch.randn(5, 96), torch.randn(96, 7)
    wanted = (a.bfloat16() @ b.bfloat16()).float() if fast else a @ b
    assert torch.equal(rough_product(a, b), wanted)
    assert (rough_product(a, b) - a @ b).norm() < 0.01 * (a @ b).norm()


def test_blocks_run_in_bfloat16_where_that_is_asked_for() -> None:
    torch.manual_seed(0)
    block, hidden = nn.Linear(64, 64).requires_grad_(False), torch.randn(1, 5, 64)
    runs = BlockRuns(block, [BlockCall((None,), {}, 0)], [hidden])
    wanted = F.linear(hidden.bfloat16(), block.weight.bfloat16(), block.bias.bfloat16()).float()
    assert torch.equal(run_block(replace(runs, half=True))[0], wanted)
    assert torch.equal(run_block(runs)[0], block(hidden))
    assert replace(runs, half=True).on([hidden]).half  # the float model runs in the same arithmetic
    assert not replace(runs, half=True).first_sequence().half  # what is found by trying needs all digits


def test_what_watches_weights_sees_them_in_bfloat16_too() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(1, 5, 64), torch.randn(64, 64)
    seen: list[Use] = []
    runs = BlockRuns(nn.Identity(), [], [inputs], half=True)
    with runs.products(), WatchWeights({"weight": weight}, seen.append):
        F.linear(inputs, weight)
    assert [use.matrix.name for use in seen] == ["weight"] and seen[0].inputs is inputs
