"""A Hopper kernel for products with a weight that stays packed: the matrix units do not wait for values to be unpacked.

Import only if Triton is installed. Triton's compiler waits for each product of values in registers. In its lower-level
language, Gluon, the next values are unpacked while a product runs. Weights are packed as in ``packed_matmul_triton``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, no-any-return"

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sparsebit.kernels.packed_warpgroup_unpack import unpack, words_of_block

AT_ONCE = gl.constexpr(16)  # fours of a thread's results that are added up at a time, to save registers
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # its names in Triton 3.7 and in earlier versions


class _Place(NamedTuple):
    """What a descriptor needs to know of a tensor."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


def describe(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """The descriptor by which Hopper copies tiles of a contiguous matrix."""
    return _describe(matrix.data_ptr(), matrix.dtype, *matrix.shape, rows, columns)


@functools.lru_cache(4096)  # to make one takes longer than to start a kernel
def _describe(
    address: int, dtype: torch.dtype, height: int, width: int, rows: int, columns: int
) -> TensorDescriptor:
    # In shared memory, rows of up to 128 bytes are mixed so that threads read them without waiting for each other.
    wide = min(128, columns * dtype.itemsize) if rows > 1 else 0
    layout = gl.NVMMASharedLayout(wide, 8 * dtype.itemsize, 2)
    return TensorDescriptor(_Place(address, dtype), [height, width], [width, 1], [rows, columns], layout)


# Their values change with the number of vectors, and the code is the same for all.
@gluon.jit(do_not_specialize=["batch", "per_program", "across"])
def multiply(
    x, words, scales, zeros, parts_ptr, counts_ptr, y_ptr, batch, rows, channels, per_program, across,
    LOW: gl.constexpr, BITS: gl.constexpr, HAS_ZERO: gl.constexpr, GROUP: gl.constexpr, BLOCK: gl.constexpr,
    GROUPS: gl.constexpr, VECTORS: gl.constexpr, REPEATS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """``x @ weight.T``, with descriptors of x [vectors, channels], words [rows, words] and scales [groups, rows].

    Blocks have ``BLOCK`` channels, and tiles ``VECTORS`` vectors of 16 ``REPEATS`` rows a warp. The blocks of all tiles
    are divided evenly among the programs. The program with the first block of a tile adds up its parts. ``GROUP`` is
    the number of channels that share a scale, and ``GROUPS`` the number of scales that are read for a block.
    """
    warps: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = x.dtype
    tall: gl.constexpr = 16 * warps * REPEATS
    result: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, VECTORS, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, result, 2)
    word_tiles = gl.allocate_shared_memory(
        gl.int32, [STAGES, tall, words_of_block(BITS, BLOCK)], words.layout
    )
    x_tiles = gl.allocate_shared_memory(dtype, [STAGES, VECTORS, BLOCK], x.layout)
    scale_tiles = gl.allocate_shared_memory(scales.dtype, [STAGES * GROUPS, 1, tall], scales.layout)
    zero_tiles = scale_tiles
    if HAS_ZERO:
        zero_tiles = gl.allocate_shared_memory(zeros.dtype, [STAGES * GROUPS, 1, tall], zeros.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for unused in gl.static_range(STAGES):
        mbarrier.init(ready.index(unused), count=1)

    blocks = gl.cdiv(channels, BLOCK)
    # A program waits for those after it in this order, which the device starts before it.
    program = gl.num_programs(0) - 1 - gl.program_id(0)
    start = program * per_program
    count = gl.minimum(per_program, gl.cdiv(rows, tall) * across * blocks - start)
    tile = start // blocks
    # What is copied next: a block, and the first row and vector of its tile.
    next_block = start - tile * blocks
    next_row = tile // across * tall
    next_vector = tile % across * VECTORS
    for ahead in gl.static_range(STAGES - 1):
        next_block, next_row, next_vector = copy(
            x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready,
            ahead, ahead < count, next_block, next_row, next_vector, blocks, across,
            BITS, GROUP, BLOCK, GROUPS, HAS_ZERO,
        )  # fmt: skip
    mbarrier.wait(ready.index(0), 0)
    values = unpack(
        word_tiles, scale_tiles, zero_tiles, 0, 0, REPEATS, operand, BITS, dtype, LOW, HAS_ZERO, BLOCK, GROUPS
    )
    others = values
    at = 0
    while at < count:
        tile = (start + at) // blocks
        end = gl.minimum(count, (tile + 1) * blocks - start)
        total = gl.full((tall, VECTORS), 0.0, gl.float32, result)
        for block in range(at, end):
            stage = block % STAGES
            # A product is started before the one before it is waited for, so that the matrix units always have one.
            product = warpgroup_mma(values, _half_of_x(x_tiles, stage, 0), total, is_async=True)
            total, others = warpgroup_mma_wait(1, (product, others))
            following = (block + 1) % STAGES
            mbarrier.wait(ready.index(following), (block + 1) // STAGES & 1, block + 1 < count)
            barrier()
            next_block, next_row, next_vector = copy(
                x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready,
                (block + STAGES - 1) % STAGES, block + STAGES - 1 < count, next_block, next_row, next_vector, blocks,
                across, BITS, GROUP, BLOCK, GROUPS, HAS_ZERO,
            )  # fmt: skip
            others = unpack(
                word_tiles, scale_tiles, zero_tiles, stage, 1, REPEATS, operand, BITS, dtype, LOW, HAS_ZERO, BLOCK,
                GROUPS,
            )  # fmt: skip
            product = warpgroup_mma(others, _half_of_x(x_tiles, stage, 1), total, is_async=True)
            total, values = warpgroup_mma_wait(1, (product, values))
            values = unpack(
                word_tiles, scale_tiles, zero_tiles, following, 0, REPEATS, operand, BITS, dtype, LOW, HAS_ZERO,
                BLOCK, GROUPS,
            )  # fmt: skip
        total, others = warpgroup_mma_wait(0, (total, others))
        finish(
            total,
            parts_ptr,
            counts_ptr,
            y_ptr,
            program,
            tile,
            blocks,
            per_program,
            across,
            batch,
            rows,
            REPEATS,
        )
        at = end


@gluon.jit
def _half_of_x(x_tiles, stage, PART: gl.constexpr):
    half: gl.constexpr = x_tiles.shape[2] // 2
    return x_tiles.index(stage).slice(PART * half, half, dim=1).permute((1, 0))


@gluon.jit
def copy(
    x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready,
    stage, wanted, block, row, vector, blocks, across,
    BITS: gl.constexpr, GROUP: gl.constexpr, BLOCK: gl.constexpr, GROUPS: gl.constexpr, HAS_ZERO: gl.constexpr,
):  # fmt: skip
    """Start to copy a block of words, x, scales and zero points; returns the next one's place.

    What lies outside a tensor is copied as 0.
    """
    tall: gl.constexpr = word_tiles.shape[1]
    vectors: gl.constexpr = x_tiles.shape[1]
    bytes_of_scales: gl.constexpr = scales.dtype.primitive_bitwidth // 8
    bytes_of_zeros: gl.constexpr = zeros.dtype.primitive_bitwidth // 8 if HAS_ZERO else 0
    per_row: gl.constexpr = 4 * words_of_block(BITS, BLOCK) + GROUPS * (bytes_of_scales + bytes_of_zeros)
    copied = ready.index(stage)
    mbarrier.expect(copied, tall * per_row + 2 * BLOCK * vectors, wanted)
    tma.async_copy_global_to_shared(
        words, [row, BITS * BLOCK // 32 * block], copied, word_tiles.index(stage), wanted
    )
    tma.async_copy_global_to_shared(x, [vector, BLOCK * block], copied, x_tiles.index(stage), wanted)
    for group in gl.static_range(GROUPS):
        place = (BLOCK * block + group * (BLOCK // GROUPS)) // GROUP
        kept = stage * GROUPS + group
        tma.async_copy_global_to_shared(scales, [place, row], copied, scale_tiles.index(kept), wanted)
        if HAS_ZERO:
            tma.async_copy_global_to_shared(zeros, [place, row], copied, zero_tiles.index(kept), wanted)
    block += 1
    if block == blocks:
        block = 0
        vector += vectors
        if vector == across * vectors:
            vector = 0
            row += tall
    return block, row, vector


@gluon.jit
def finish(
    total, parts_ptr, counts_ptr, y_ptr, program, tile, blocks, per_program, across, batch, rows,
    REPEATS: gl.constexpr,
):  # fmt: skip
    """Write a tile, or one program's part of it. The first program of a tile adds up its parts, in their order.

    A program is the first of at most one tile that has several parts, so the counter of a tile is that of the program.
    """
    tall: gl.constexpr = total.shape[0]
    vectors: gl.constexpr = total.shape[1]
    head = tile * blocks // per_program
    others = ((tile + 1) * blocks - 1) // per_program - head
    fours = _in_fours(total, REPEATS)
    if program != head:
        _write_part(fours, parts_ptr + program * (tall * vectors), 0)
        barrier()
        gl.atomic_add(counts_ptr + head, 1)
    else:
        if others > 0:
            arrived = gl.atomic_add(counts_ptr + head, 0)
            while arrived < others:
                arrived = gl.atomic_add(counts_ptr + head, 0)
            gl.store(counts_ptr + head, 0)
            barrier()
        first_part = parts_ptr + (head + 1) * (tall * vectors)
        first_row, first_vector = tile // across * tall, tile % across * vectors
        _write(fours, first_part, others, y_ptr, first_row, first_vector, batch, rows, 0, tall, vectors)


@gluon.jit
def _in_fours(total, REPEATS: gl.constexpr):
    """A tile as [n, 4 * threads]: each thread's numbers, four at a time."""
    warps: gl.constexpr = gl.num_warps()
    eighths: gl.constexpr = total.shape[1] // 8
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, warps], [1, 0])
    split = gl.reshape(total, (REPEATS, warps, 2, 8, eighths, 4, 2))
    fours = gl.reshape(gl.permute(split, (0, 4, 1, 3, 5, 2, 6)), (REPEATS * eighths, 128 * warps))
    return gl.convert_layout(fours, layout, assert_trivial=True)


@gluon.jit
def _upper_and_lower(fours):
    """The first half of the rows, and the second."""
    half: gl.constexpr = fours.shape[0] // 2
    first, second = gl.split(gl.permute(gl.reshape(fours, (2, half, fours.shape[1])), (1, 2, 0)))
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, gl.num_warps()], [1, 0])
    first = gl.convert_layout(first, layout, assert_trivial=True)
    return first, gl.convert_layout(second, layout, assert_trivial=True)


@gluon.jit
def _places(fours, FIRST: gl.constexpr):
    """Where these rows of fours, from the first one on, lie in a part."""
    layout: gl.constexpr = fours.type.layout
    row = FIRST + gl.arange(0, fours.shape[0], gl.SliceLayout(1, layout))
    column = gl.arange(0, fours.shape[1], gl.SliceLayout(0, layout))
    return row[:, None] * fours.shape[1] + column[None, :]


@gluon.jit
def _write_part(fours, to, FIRST: gl.constexpr):
    """Write the rows of a part from the first one on."""
    if fours.shape[0] > AT_ONCE:
        first, second = _upper_and_lower(fours)
        _write_part(first, to, FIRST)
        _write_part(second, to, FIRST + first.shape[0])
    else:
        gl.store(to + _places(fours, FIRST), fours)


@gluon.jit
def _write(
    fours, parts_ptr, parts, y_ptr, first_row, first_vector, batch, rows,
    FIRST: gl.constexpr, TALL: gl.constexpr, VECTORS: gl.constexpr,
):  # fmt: skip
    """Add the other parts of a tile to these rows of fours, and write them."""
    if fours.shape[0] > AT_ONCE:
        first, second = _upper_and_lower(fours)
        half: gl.constexpr = first.shape[0]
        _write(first, parts_ptr, parts, y_ptr, first_row, first_vector, batch, rows, FIRST, TALL, VECTORS)
        _write(
            second, parts_ptr, parts, y_ptr, first_row, first_vector, batch, rows, FIRST + half, TALL, VECTORS
        )
    else:
        place = _places(fours, FIRST)
        for part in range(parts):
            fours += gl.load(parts_ptr + part * (TALL * VECTORS) + place, cache_modifier=".cg")
        eighths: gl.constexpr = VECTORS // 8 if fours.shape[0] > VECTORS // 8 else fours.shape[0]
        repeats: gl.constexpr = fours.shape[0] // eighths
        warps: gl.constexpr = gl.num_warps()
        split = gl.reshape(fours.to(y_ptr.dtype.element_ty), (repeats, eighths, warps, 8, 4, 2, 2))
        found = gl.reshape(gl.permute(split, (1, 4, 6, 0, 2, 5, 3)), (8 * eighths, repeats * 16 * warps))
        # Eight numbers that are next to each other in the result, for each thread.
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [16 // warps, 2 * warps], [warps, 1], [1, 0])
        found = gl.convert_layout(found, layout)
        row = first_row + FIRST // (VECTORS // 8) * (16 * warps)
        row += gl.arange(0, repeats * 16 * warps, gl.SliceLayout(0, layout))
        vector = first_vector + FIRST % (VECTORS // 8) * 8
        vector += gl.arange(0, 8 * eighths, gl.SliceLayout(1, layout))
        kept = (row < rows)[None, :] & (vector < batch)[:, None]
        gl.store(y_ptr + (vector.to(gl.int64)[:, None] * rows + row[None, :]), found, mask=kept)
