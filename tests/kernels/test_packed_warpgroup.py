"""The kernel for Hopper: its settings on any machine, its products on one."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.gpu.packed_matmul import Case, compare
from sparsebit.kernels.packed_warpgroup import BLOCK, SHARED, STAGES, plan_call, values_of

SIZES = ((4096, 4096), (8192, 8192), (28672, 8192), (160, 1024), (11008, 4096))


def test_every_plan_fits_the_shared_memory_and_has_a_block_to_copy_while_two_are_used() -> None:
    taken = 0
    for (rows, channels), bits, size, batch in itertools.product(
        SIZES, (2, 3, 4, 8), (32, 64, 128, None), range(1, 600, 3)
    ):
        groups = 1 if size is None else channels // size
        plan = plan_call(rows, channels, groups, bits, batch)
        if plan is None:
            continue
        taken += 1
        per_group = channels // values_of(bits) // groups
        words = 16 * plan.warps * 4 * BLOCK * (3 if bits == 3 else 1)
        scales = 16 * plan.warps * (4 + 2) * max(1, BLOCK // per_group)
        of_stage = words + scales + 2 * BLOCK * values_of(bits) * plan.vectors
        assert 3 <= plan.stages <= STAGES and plan.stages * of_stage * plan.per_processor <= SHARED
        assert plan.registers is None or plan.registers * 32 * plan.warps * plan.per_processor <= 65536
    assert taken > 500


@pytest.mark.parametrize(
    ("rows", "channels", "groups", "bits", "batch"),
    [
        (4096, 4096, 32, 4, 8),  # few vectors
        (4096, 4096, 32, 4, 1000),  # many
        (4100, 4096, 128, 4, 16),  # rows whose scales are not aligned
        (4096, 576, 18, 4, 16),  # channels that do not fill blocks
        (4096, 24 * 8 * 16, 16, 4, 200),  # 24 units a group: a block may have parts of two
    ],
)
def test_other_ways_take_what_it_does_not(
    rows: int, channels: int, groups: int, bits: int, batch: int
) -> None:
    assert plan_call(rows, channels, groups, bits, batch) is None


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [9, 16, 33, 64, 100, 300])
@pytest.mark.parametrize(
    ("code", "group_size"),
    [("int4", 32), ("uint4", 64), ("int3", 64), ("uint3", 128)],
)
def test_products_equal_those_with_the_unpacked_weight(code: str, group_size: int, batch: int) -> None:
    assert compare(Case(272, 2048, batch, code, group_size), "cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("code", "group_size", "batch"),
    [("int4", 128, 96), ("uint4", None, 257), ("uint2", 128, 64), ("uint8", 32, 40), ("int8", 128, 100)],
)
def test_products_with_large_weights(code: str, group_size: int | None, batch: int) -> None:
    assert compare(Case(8192, 4096, batch, code, group_size), "cuda") is None
