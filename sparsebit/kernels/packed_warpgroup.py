"""Products of many vectors with a packed weight on Hopper: when its kernel is used, and with which settings."""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.kernels.counters import take_counters
from sparsebit.kernels.launch import launch

BLOCK = 16  # units of a row that are multiplied at once
LARGE = 2**25  # elements from which a weight is large
SHARED = 226 * 1024  # bytes of shared memory that the programs on one multiprocessor may use
STAGES = 6  # the most blocks being copied at a time
# The range of vectors for which this kernel is the fastest, by bit width, for small and for large weights; and for
# 4 bits with several scales per block. Measured on an H200.
FASTEST = {
    2: (None, (33, 384)),
    3: ((4, 64), (4, 64)),
    4: (None, (65, 384)),
    8: (None, (9, 128)),
}
FASTEST_SCALES = ((9, 64), (9, 384))


class Plan(NamedTuple):
    """The settings of one call.

    Attributes:
        vectors: vectors per program.
        warps: warps per program; each computes 16 rows.
        per_processor: programs that run at the same time on one multiprocessor.
        registers: the most registers per thread; None for no limit.
        stages: blocks that are copied or multiplied at the same time.
    """

    vectors: int
    warps: int
    per_processor: int
    registers: int | None
    stages: int


def values_of(bits: int) -> int:
    """The values in a unit, which is one word, or three words for 3 bits."""
    return 32 if bits == 3 else 32 // bits


@functools.lru_cache(4096)
def plan_call(rows: int, channels: int, groups: int, bits: int, batch: int) -> Plan | None:
    """The settings for this number of vectors; None if the kernel cannot multiply them or another way is faster.

    Scales are copied at least 4 bytes at a time, so the number of rows must be even. Triton recognizes that for
    multiples of 16.
    """
    units, large = channels // values_of(bits), rows * channels >= LARGE
    per_group = units // groups
    if units % BLOCK or rows % 16 or per_group < 2 or max(per_group, BLOCK) % min(per_group, BLOCK):
        return None
    fastest = (FASTEST_SCALES if bits == 4 and per_group < BLOCK else FASTEST[bits])[large]
    if fastest is None or not fastest[0] <= batch <= fastest[1]:
        return None
    vectors = min({3: 32}.get(bits, 128), max(16, 1 << (batch - 1).bit_length()))
    settings: tuple[int, int, int | None] = (8, 1, None)
    if bits == 3 and vectors == 16:
        settings = (4, 2, None)
    elif bits in (4, 8) and large and vectors <= 32:
        settings = (4, 4, 128)
    elif bits == 8 and large and vectors == 64:
        settings = (4, 3, 168)
    warps, per_processor, registers = settings
    words = 4 * BLOCK * (3 if bits == 3 else 1)
    of_stage = 16 * warps * (words + 6 * max(1, BLOCK // per_group)) + 2 * BLOCK * values_of(bits) * vectors
    stages = min(STAGES, SHARED // per_processor // of_stage)
    return None if stages < 3 else Plan(vectors, warps, per_processor, registers, stages)


@functools.cache
def has_warpgroups(device: int) -> bool:
    """Whether the device has Hopper's instructions and Triton has the language for them."""
    if torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        return importlib.util.find_spec("triton.experimental.gluon.language.nvidia.hopper") is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def multiply_by_warpgroups(
    x: Tensor, packed: Tensor, scale: Tensor, zero_point: Tensor | None, bits: int, low: int, plan: Plan
) -> Tensor:
    """``x @ weight.T`` for x [vectors, in] and scales [groups, out]."""
    from sparsebit.kernels import packed_matmul_triton, packed_warpgroup_gluon

    (batch, channels), rows, places = x.shape, packed.shape[0], values_of(bits)
    units, tall = channels // places, 16 * plan.warps
    across, blocks = math.ceil(batch / plan.vectors), units // BLOCK
    # Vectors after the last one are multiplied but not written, so their values do not matter.
    arranged = torch.empty(across * plan.vectors, channels, dtype=x.dtype, device=x.device)
    sums = torch.empty(blocks, across * plan.vectors, device=x.device)
    several = max(1, 1024 // (BLOCK * places))
    launch(
        packed_matmul_triton.arrange,
        math.ceil(blocks / several),
        (x, arranged, sums),
        (),
        (blocks, across * plan.vectors, min(bits, 4), places, BLOCK, several),
        across=batch,
    )
    tiles = math.ceil(rows / tall) * across
    per_program = math.ceil(tiles * blocks / (plan.per_processor * _processors(x.get_device())))
    programs = math.ceil(tiles * blocks / per_program)
    parts = torch.empty(2 * programs * tall * plan.vectors, device=x.device)
    y = torch.empty(batch, rows, dtype=x.dtype, device=x.device)
    launch(
        packed_warpgroup_gluon.multiply,
        programs,
        (
            *(arranged, packed.view(torch.int32), scale, packed if zero_point is None else zero_point),
            *(parts, take_counters(x.device, tiles), y),
        ),
        (),
        (
            *(batch, rows, units, per_program, across, 2),
            *(low, bits, 3 if bits == 3 else 1, zero_point is not None, units // scale.shape[0]),
            *(plan.vectors, plan.stages, bits != 3),
        ),
        warps=plan.warps,
        registers=plan.registers,
    )
    return y
