"""The kernel for Hopper: its settings on any machine, its products on one."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks.gpu.packed_matmul import Case, compare
from sparsebit.kernels.packed_warpgroup import (
    APART,
    FEW_SETTINGS,
    MOST,
    SETTINGS,
    SHARED,
    STAGES,
    choose_settings,
    plan_call,
    words_of_block,
)

SIZES = ((4096, 4096), (8192, 8192), (28672, 8192), (160, 1024), (11008, 4096), (4096, 24 * 8 * 16))


def test_every_plan_fits_the_shared_memory_and_has_a_block_to_copy_while_two_are_used() -> None:
    taken = set()
    for (rows, channels), bits, size, batch in itertools.product(
        SIZES, (2, 3, 4, 8), (32, 64, 128, None), range(1, 1100, 3)
    ):
        groups = 1 if size is None else channels // size
        plan = plan_call(rows, channels, groups, bits, batch)
        if plan is None:
            continue
        one = plan.settings
        taken.add((rows, bits, one))
        words = 4 * words_of_block(bits, plan.block) * 16 * one.warps * one.repeats
        scales = (4 + 2) * plan.scales * 16 * one.warps * one.repeats
        used = plan.stages * (words + scales + 2 * plan.block * one.vectors) + APART
        assert 3 <= plan.stages <= STAGES and used * one.per_processor <= SHARED
        assert one.registers is None or one.registers * 32 * one.warps * one.per_processor <= 65536
        assert plan.group % (plan.block // plan.scales) == 0  # every scale is of a whole group or of less
    every = {one for of_sizes in (*SETTINGS, *FEW_SETTINGS) for one in of_sizes}
    assert {one for _, _, one in taken} == every


@pytest.mark.parametrize(
    ("bits", "size", "few"), [(4, 32, True), (2, 64, True), (2, 32, False), (8, 128, False)]
)
def test_few_vectors_have_their_kernel_for_2_and_4_bits(bits: int, size: int, few: bool) -> None:
    for batch in range(2, 17):
        plan = plan_call(4096, 4096, 4096 // size, bits, batch)
        assert plan is not None and plan.settings.few == few and plan.settings.vectors >= batch
    plan = plan_call(4096, 4096, 4096 // size, bits, 17)
    assert plan is not None and not plan.settings.few


def test_a_tile_has_the_next_more_vectors_and_gives_way_to_a_smaller_one_that_fits() -> None:
    for batch in range(2, 257):
        tiles = [one.vectors for one in choose_settings(8192, 8192, 3, batch)]
        assert tiles == sorted(tiles, reverse=True) and batch <= tiles[0] < max(17, 2 * batch)
    preferred = choose_settings(4096, 4096, 3, 128)[0]
    plan = plan_call(4096, 4096, 32, 3, 128)  # 3 bits copy more words than they use
    assert plan is not None and plan.settings.vectors < preferred.vectors == 128


@pytest.mark.parametrize(
    ("rows", "channels", "groups", "bits", "batch"),
    [
        (4096, 4096, 32, 4, 1),  # one vector
        (4096, 4096, 32, 4, MOST[4] + 1),  # many
        (4100, 4096, 128, 4, 16),  # rows whose scales are not aligned
        (4096, 4096 + 8, 1, 4, 16),  # words of a row that are not
        (4096, 4096, 512, 4, 16),  # groups of 8
    ],
)
def test_other_ways_take_what_it_does_not(
    rows: int, channels: int, groups: int, bits: int, batch: int
) -> None:
    assert plan_call(rows, channels, groups, bits, batch) is None


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [2, 9, 16, 33, 64, 100, 300])
@pytest.mark.parametrize(
    ("code", "group_size"),
    [("int4", 32), ("uint4", 16), ("int3", 64), ("uint3", 128), ("int8", 32), ("uint2", None)],
)
def test_products_equal_those_with_the_unpacked_weight(code: str, group_size: int, batch: int) -> None:
    assert compare(Case(272, 2048, batch, code, group_size), "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("code", "group_size", "batch"),
    [
        ("int4", 128, 96),
        ("uint4", None, 257),
        ("uint2", 128, 64),
        ("uint8", 32, 40),
        ("int8", 128, 100),
        ("int4_full", 64, 700),
    ],
)
def test_products_with_large_weights(code: str, group_size: int | None, batch: int) -> None:
    assert compare(Case(8192, 4096, batch, code, group_size), "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [2, 5, 8, 11, 16])
@pytest.mark.parametrize(
    ("code", "group_size", "dtype"),
    [
        ("int4", 32, torch.float16), ("uint4", 64, torch.bfloat16), ("uint2", 64, torch.float16),
        ("int4", 128, torch.bfloat16), ("uint4", 256, torch.float16), ("int4_full", None, torch.bfloat16),
        ("uint2", 128, torch.bfloat16), ("int2", None, torch.float16),
    ],
)  # fmt: skip
def test_products_of_few_vectors(code: str, group_size: int | None, dtype: torch.dtype, batch: int) -> None:
    for rows in (8208, 208):
        assert compare(Case(rows, 4096, batch, code, group_size, dtype), "cuda") is None


@pytest.mark.gpu
def test_products_with_very_large_weights_and_channels_that_do_not_fill_a_block() -> None:
    assert compare(Case(16384, 8192 + 64, 50, "int4", 64), "cuda") is None
    assert compare(Case(16384, 8192 + 32, 100, "uint8", 32, torch.float16), "cuda") is None
