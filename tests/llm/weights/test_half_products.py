"""Products of calibration runs in bfloat16: close, in float32 again, and only where weights are large."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.weights.half_products import HalfProducts, multiplies_bfloat16_faster
from sparsebit.llm.weights.uses import Use, WatchWeights


def test_a_product_is_that_of_the_rounded_numbers_in_float32() -> None:
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(5, 96), torch.randn(64, 96), torch.randn(64)
    with HalfProducts():
        plain, biased = F.linear(inputs, weight), F.linear(inputs, weight, bias)
        by_keyword = F.linear(inputs, weight, bias=bias)
    wanted = F.linear(inputs.bfloat16(), weight.bfloat16()).float()
    assert torch.equal(plain, wanted) and plain.dtype == torch.float32
    assert torch.equal(biased, wanted + bias) and torch.equal(by_keyword, biased)
    assert (plain - F.linear(inputs, weight)).norm() < 0.01 * plain.norm()


def test_small_weights_and_other_dtypes_are_left_alone() -> None:
    torch.manual_seed(0)
    router, wide = torch.randn(8, 96), torch.randn(64, 96, dtype=torch.float64)
    inputs = torch.randn(5, 96)
    with HalfProducts():
        routed, doubled = F.linear(inputs, router), F.linear(inputs.double(), wide)
    assert torch.equal(routed, F.linear(inputs, router))
    assert torch.equal(doubled, F.linear(inputs.double(), wide))


def test_an_input_that_was_written_into_is_read_again() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(5, 64), torch.randn(64, 64)
    with HalfProducts():
        F.linear(inputs, weight)
        inputs.zero_()
        assert not F.linear(inputs, weight).any()


def test_what_watches_weights_sees_float32() -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(5, 64), torch.randn(64, 64)
    seen: list[Use] = []
    with HalfProducts(), WatchWeights({"weight": weight}, seen.append):
        F.linear(inputs, weight)
    assert [use.matrix.name for use in seen] == ["weight"] and seen[0].inputs is inputs


@pytest.mark.parametrize("fast", [False, True])
def test_the_shift_is_multiplied_in_what_the_processor_does_faster(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": fast})
    assert multiplies_bfloat16_faster(torch.device("cpu")) is fast
    assert multiplies_bfloat16_faster(torch.device("cuda"))


def test_blocks_run_in_bfloat16_where_that_is_asked_for() -> None:
    torch.manual_seed(0)
    block, hidden = nn.Linear(64, 64), torch.randn(1, 5, 64)
    runs = BlockRuns(block, [BlockCall((None,), {}, 0)], [hidden])
    wanted = F.linear(hidden.bfloat16(), block.weight.bfloat16()).float().add_(block.bias)
    assert torch.equal(run_block(replace(runs, half=True))[0], wanted)
    assert torch.equal(run_block(runs)[0], block(hidden))
    assert replace(runs, half=True).on([hidden]).half  # the float model runs in the same arithmetic
    assert not replace(runs, half=True).first_sequence().half  # what is found by trying needs all digits
