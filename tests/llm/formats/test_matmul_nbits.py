"""Blocks for MatMulNBits: they hold the numbers of every grid, alone and joined."""

from __future__ import annotations

import pytest
import torch

from sparsebit.llm.formats.matmul_nbits import block_kind, block_size, block_weight, joined, with_rows
from tests.llm.formats.gguf.test_blocks import packed


@pytest.mark.parametrize(
    "code", ["int2_full", "uint2", "int3_full", "uint3", "int4", "int4_full", "uint4", "int8", "uint8"]
)
@pytest.mark.parametrize("size", [16, 32, 64])
def test_blocks_hold_the_numbers(code: str, size: int) -> None:
    held = packed(code, size=size)
    made = block_weight(held)
    assert torch.equal(made.numbers(), held.numbers())
    assert made.bits == (4 if "3" in code else held.grid.code.bits) and made.block_size == size


def test_groups_that_are_not_powers_of_two_are_cut() -> None:
    held = packed("int4_full", size=96, columns=192)
    assert block_size(held) == 32 and torch.equal(block_weight(held).numbers(), held.numbers())


def test_joined_rows_stay_in_order() -> None:
    first, second = packed("uint4"), packed("uint4")
    both = joined([block_weight(first), block_weight(second)])
    assert torch.equal(both.numbers(), torch.cat([first.numbers(), second.numbers()]))


@pytest.mark.parametrize("code", ["int4_full", "uint4"])
def test_moved_rows_take_their_scales_and_zero_points_along(code: str) -> None:
    held = packed(code)
    order = torch.arange(held.shape[0]).flip(0)
    assert torch.equal(with_rows(block_weight(held), order).numbers(), held.numbers()[order])
    assert block_kind(held) == (4, 32, code == "uint4")
