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

BLOCKS = (128, 64)  # channels of a row that are copied together: the first for which three stages fit
SHARED = 228 * 1024  # bytes of shared memory of a multiprocessor
APART = 6 * 1024  # of them, what a program needs besides the stages
STAGES = 6  # the most blocks being copied at a time
LARGE, HUGE = 2**25, 2**27  # elements from which a weight is large, and very large
FEW, FEW_BITS = 16, (2, 4)  # up to so many vectors, these widths have a kernel of their own
FEWEST, MOST = 2, {2: 1024, 3: 1024, 4: 1024, 8: 512}  # vectors for which Hopper's kernels are the fastest


class Settings(NamedTuple):
    """How the work is divided.

    Attributes:
        vectors: vectors of a tile.
        warps: warps of a program; each computes 16 rows, ``repeats`` times.
        repeats: see ``warps``.
        per_processor: programs that run at the same time on one multiprocessor.
        registers: the most registers per thread; None for no limit.
        few: whether this is for the kernel in ``packed_few_gluon``.
    """

    vectors: int
    warps: int
    repeats: int
    per_processor: int
    registers: int | None
    few: bool = False


class Plan(NamedTuple):
    """The settings of one call, and what follows from them.

    Attributes:
        settings: how the work is divided.
        group: channels that share a scale.
        block: channels of a block.
        scales: scales that are read for a block.
        stages: blocks that are copied or multiplied at the same time.
    """

    settings: Settings
    group: int
    block: int
    scales: int
    stages: int


def values_of(bits: int) -> int:
    """The values in a unit, which is one word, or three words for 3 bits."""
    return 32 if bits == 3 else 32 // bits


def words_of_block(bits: int, block: int) -> int:
    """The words of a row that are copied for a block; the last four of 3 bits are not needed."""
    return 16 if bits == 3 else block * bits // 32


# The fastest of those measured on an H200, for small, large and very large weights; a tile has the next more vectors.
SETTINGS = (
    (Settings(16, 4, 1, 4, 128), Settings(16, 4, 2, 2, None), Settings(16, 4, 2, 2, None)),
    (Settings(32, 4, 1, 4, 128), Settings(32, 4, 2, 2, None), Settings(32, 4, 2, 2, None)),
    (Settings(64, 4, 1, 2, None), Settings(64, 4, 1, 2, None), Settings(64, 4, 2, 2, None)),
    (Settings(128, 4, 1, 2, None), Settings(128, 8, 1, 1, None), Settings(128, 8, 2, 1, None)),
    (Settings(256, 8, 1, 1, None),) * 3,
)
FEW_SETTINGS = (
    (Settings(8, 4, 1, 4, 64, True), Settings(8, 4, 2, 4, 64, True), Settings(8, 4, 2, 4, 64, True)),
    (Settings(16, 4, 1, 4, 64, True), Settings(16, 4, 4, 2, 128, True), Settings(16, 4, 4, 2, 128, True)),
)


def choose_settings(rows: int, channels: int, bits: int, batch: int) -> list[Settings]:
    """Settings for such a product, the best first; none if another way is faster."""
    if not FEWEST <= batch <= MOST[bits]:
        return []
    size = (rows * channels >= LARGE) + (rows * channels >= HUGE)
    wide = [of_sizes[size] for of_sizes in SETTINGS]
    enough = next((i for i, one in enumerate(wide) if one.vectors >= batch), len(wide) - 1)
    found = wide[enough::-1]  # a tile that does not fit the device gives way to those with fewer vectors
    if batch <= FEW and bits in FEW_BITS:
        found.insert(0, FEW_SETTINGS[batch > FEW_SETTINGS[0][0].vectors][size])
    return found


@functools.lru_cache(4096)
def plan_call(rows: int, channels: int, groups: int, bits: int, batch: int) -> Plan | None:
    """The plan for this number of vectors; None if the kernel cannot multiply them or another way is faster.

    Descriptors of a matrix need rows of a multiple of 16 bytes, be it words, scales or x.
    """
    if rows % 16 or channels % 8 or channels * bits % 128:
        return None
    # A group of all channels also has those that only fill the last block.
    size = channels // groups if groups > 1 else 2**30
    for settings in choose_settings(rows, channels, bits, batch):
        if settings.few and bits not in FEW_BITS:
            continue
        tall = 16 * settings.warps * settings.repeats
        for block in BLOCKS[: 1 if bits == 3 or settings.few else 2]:
            most = bits if settings.few else 4  # scales of a block: a thread unpacks so many words of it
            scales = next((n for n in (1, 2, 4) if n <= most and size % (block // n) == 0), 0)
            of_stage = tall * (4 * words_of_block(bits, block) + 6 * scales) + 2 * block * settings.vectors
            stages = min(STAGES, (SHARED // settings.per_processor - APART) // of_stage)
            if scales and stages >= 3:
                return Plan(settings, size, block, scales, stages)
    return None


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
    from sparsebit.kernels.packed_few_gluon import multiply_few
    from sparsebit.kernels.packed_warpgroup_gluon import describe, multiply

    (batch, channels), rows, settings = x.shape, packed.shape[0], plan.settings
    tall = 16 * settings.warps * settings.repeats
    across, blocks = math.ceil(batch / settings.vectors), math.ceil(channels / plan.block)
    tiles = math.ceil(rows / tall) * across
    per_program = math.ceil(tiles * blocks / (settings.per_processor * _processors(x.get_device())))
    programs = math.ceil(tiles * blocks / per_program)
    parts = torch.empty(programs * tall * settings.vectors, device=x.device)
    y = torch.empty(batch, rows, dtype=x.dtype, device=x.device)
    scales = describe(scale, 1, tall)
    launch(
        multiply_few if settings.few else multiply,
        programs,
        (parts, take_counters(x.device, programs), y),
        (),
        (
            *(batch, rows, channels, per_program, across),
            *(low, bits, zero_point is not None, plan.group, plan.block, plan.scales),
            *(settings.vectors, settings.repeats, plan.stages),
        ),
        warps=settings.warps,
        registers=settings.registers,
        descriptors=(
            describe(x, settings.vectors, plan.block),
            describe(packed.view(torch.int32), tall, words_of_block(bits, plan.block)),
            scales,
            scales if zero_point is None else describe(zero_point, 1, tall),
        ),
    )
    return y
