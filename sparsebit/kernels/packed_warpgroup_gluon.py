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
import triton
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

from sparsebit.kernels import packed_warpgroup

AT_ONCE = gl.constexpr(
    16
)  # fours of a thread's results that are added up at a time: more would not fit the registers
words_of_block = triton.constexpr_function(packed_warpgroup.words_of_block)
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


@triton.constexpr_function
def words_of_unit(bits: int) -> int:
    """Words that are unpacked together: the fewest whose values divide evenly among four threads, in pairs."""
    return {8: 2, 3: 3}.get(bits, 1)


@triton.constexpr_function
def results_of_unit(bits: int) -> int:
    """Pairs of values that each of the four threads gets of a unit."""
    return {2: 2, 3: 4}.get(bits, 1)


@triton.constexpr_function
def write_assembly(bits: int, is_float16: bool) -> str:
    """PTX that unpacks one thread's pairs of a unit, as 16-bit numbers ``(value - offset) * scale``.

    The matrix units read channels 2 t and 2 t + 1 of every eight from thread t of four. All four read the same words,
    and each takes its own bits; ``by_thread`` says which. A value is set into the mantissa of a power of two whose bits
    are ``magic``: (a & mask) | magic is one instruction, and no conversion is needed. An 8-bit value is put together
    from two halves, each with an offset of its own.

    Operands: the results, then every word twice (inputs come for both values of a pair), ``by_thread`` twice, the
    offsets of the lower and the upper half, and the scale.
    """
    twice = 0x10001  # a number of 16 bits in both halves of a register
    magic, minus_one, sixteen = (0x6400, 0xBC00, 0x4C00) if is_float16 else (0x4300, 0xBF80, 0x4180)
    fma = "fma.rn.f16x2" if is_float16 else "fma.rn.bf16x2"
    words, results = words_of_unit(bits), results_of_unit(bits)
    w = [f"${results + 2 * i}" for i in range(words)]
    by_thread, offset, upper, scale = (f"${results + 2 * words + i}" for i in (0, 2, 3, 4))
    mask = ((1 << min(bits, 4)) - 1) * twice
    lines = [
        ".reg .b32 a, u, minus_one, minus_zero, sixteen;",
        f"mov.b32 minus_one, 0x{minus_one * twice:X}; mov.b32 minus_zero, 0x80008000;",
        f"mov.b32 sixteen, 0x{sixteen * twice:X};",
    ]
    if bits == 8:
        lines.append(f"prmt.b32 $0, {w[0]}, {w[1]}, {by_thread};")
        lines.append(f"shr.u32 u, $0, 4; lop3.b32 u, u, 0x{mask:X}, 0x{magic * twice:X}, 0xEA;")
        lines.append(f"{fma} u, {upper}, minus_one, u;")
    elif bits == 4:
        lines.append(f"shr.u32 u, {w[0]}, 4; prmt.b32 $0, {w[0]}, u, {by_thread};")
    elif bits == 3:  # 24 bits are the pairs of the four threads
        lines.append(f"mov.b32 $0, {w[0]}; prmt.b32 $1, {w[0]}, {w[1]}, 0x0543;")
        lines.append(f"prmt.b32 $2, {w[1]}, {w[2]}, 0x0432; shr.u32 $3, {w[2]}, 8;")
        for i in range(4):
            lines.append(f"shr.u32 a, ${i}, {by_thread}; shr.u32 u, a, 3; prmt.b32 ${i}, a, u, 0x4400;")
    else:
        lines.append(f"shr.u32 a, {w[0]}, {by_thread}; shr.u32 u, a, 2;")
        lines.append("prmt.b32 $0, a, u, 0x4400; prmt.b32 $1, a, u, 0x6622;")
    for i in range(results):
        lines.append(f"lop3.b32 ${i}, ${i}, 0x{mask:X}, 0x{magic * twice:X}, 0xEA;")
        lines.append(f"{fma} ${i}, {offset}, minus_one, ${i};")
        if bits == 8:
            lines.append(f"{fma} ${i}, u, sixteen, ${i};")
        lines.append(f"{fma} ${i}, ${i}, {scale}, minus_zero;")
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def bits_of_thread(bits: int, thread: int) -> int:
    """``by_thread`` of ``write_assembly``: how far to shift, or the bytes to select."""
    return {8: 0x1100 + 0x2222 * thread, 4: 0x4400 + 0x1111 * thread, 3: 6 * thread, 2: 4 * thread}[bits]


@triton.constexpr_function
def _registers(bits: int) -> str:
    return ",".join(["=&r"] * results_of_unit(bits) + ["r"] * (2 * words_of_unit(bits) + 5))


@triton.constexpr_function
def _results(bits: int, dtype: gl.dtype) -> tuple[gl.dtype, ...]:
    return (dtype,) * results_of_unit(bits)


@triton.constexpr_function
def _values_layout(warps: int, repeats: int, units: int) -> gl.DistributedLinearLayout:
    """The layout of unpacked values, [rows, units, 4, 2]: each is in the thread from which the matrix units read it."""
    of_units = [[0, 1 << i, 0, 0] for i in range(units.bit_length() - 1)]
    of_repeats = [[16 * warps << i, 0, 0, 0] for i in range(repeats.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 0, 0, 1], *of_units, [8, 0, 0, 0], *of_repeats],
        [[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
        [[16 << i, 0, 0, 0] for i in range(warps.bit_length() - 1)],
        [],
        [16 * warps * repeats, units, 4, 2],
    )


@triton.constexpr_function
def _words_layout(warps: int, repeats: int, words: int) -> gl.DistributedLinearLayout:
    """[rows, words]: all words of a row in each of the four threads that share it."""
    of_words = [[0, 1 << i] for i in range(words.bit_length() - 1)]
    of_repeats = [[16 * warps << i, 0] for i in range(repeats.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [*of_words, [8, 0], *of_repeats],
        [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]],
        [[16 << i, 0] for i in range(warps.bit_length() - 1)],
        [],
        [16 * warps * repeats, words],
    )


@triton.constexpr_function
def _row_layout(warps: int, repeats: int) -> gl.DistributedLinearLayout:
    """[1, rows]: what belongs to a row in each of the four threads that share it."""
    of_repeats = [[0, 16 * warps << i] for i in range(repeats.bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 8], *of_repeats],
        [[0, 0], [0, 0], [0, 1], [0, 2], [0, 4]],
        [[0, 16 << i] for i in range(warps.bit_length() - 1)],
        [],
        [1, 16 * warps * repeats],
    )


@gluon.jit
def _of_units(first, second, UNITS: gl.constexpr, GROUPS: gl.constexpr, LAYOUT: gl.constexpr):
    """Values per group, one or two tensors [rows], as [rows, units, 1, 1]."""
    spread = gl.expand_dims(first, 1)
    if GROUPS > 1:
        unit = gl.arange(0, UNITS, gl.SliceLayout(0, LAYOUT))
        spread = gl.where((unit < UNITS // 2)[None, :], spread, gl.expand_dims(second, 1))
    return gl.expand_dims(gl.expand_dims(spread, 2), 3)


@gluon.jit
def _word_of_units(of_units, LAYOUT: gl.constexpr):
    """One word of every unit, [rows, units], as [rows, units, 1, 1]."""
    found = gl.convert_layout(of_units, LAYOUT, assert_trivial=True)
    return gl.expand_dims(gl.expand_dims(found, 2), 3)


@gluon.jit
def _half_of(words, PART: gl.constexpr):
    """The first or the second half of the columns."""
    half: gl.constexpr = words.shape[1] // 2
    first, second = gl.split(gl.permute(gl.reshape(words, (words.shape[0], 2, half)), (0, 2, 1)))
    if PART == 0:
        return first
    else:
        return second


@gluon.jit
def _three_words(words, PART: gl.constexpr):
    """The words of both units of 32 values of 3 bits in a half: three tensors [rows, 2]."""
    even, odd = gl.split(gl.reshape(words, (words.shape[0], 2, 2, 2, 2)))
    e0, e1 = gl.split(even)
    o0, o1 = gl.split(odd)
    e00, e01 = gl.split(e0)
    e10, e11 = gl.split(e1)
    o00, o01 = gl.split(o0)
    o10, o11 = gl.split(o1)
    w0, w8 = gl.split(e00)
    w4, _w12 = gl.split(e01)
    w2, w10 = gl.split(e10)
    w6, _w14 = gl.split(e11)
    w1, w9 = gl.split(o00)
    w5, _w13 = gl.split(o01)
    w3, w11 = gl.split(o10)
    w7, _w15 = gl.split(o11)
    if PART == 0:
        return gl.join(w0, w3), gl.join(w1, w4), gl.join(w2, w5)
    else:
        return gl.join(w6, w9), gl.join(w7, w10), gl.join(w8, w11)


@gluon.jit
def _per_row(tile, WARPS: gl.constexpr, REPEATS: gl.constexpr, LAYOUT: gl.constexpr):
    """Load a tile [1, rows] as [rows]."""
    loaded = tile.load(_row_layout(WARPS, REPEATS))
    return gl.convert_layout(gl.reshape(loaded, (loaded.shape[1],)), LAYOUT, assert_trivial=True)


@gluon.jit
def _numbers(
    word_tiles, scale_tiles, zero_tiles, stage, PART: gl.constexpr, REPEATS: gl.constexpr, OPERAND: gl.constexpr,
    BITS: gl.constexpr, DTYPE: gl.constexpr, LOW: gl.constexpr, HAS_ZERO: gl.constexpr, BLOCK: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Unpack half a block, [rows, channels]."""
    warps: gl.constexpr = gl.num_warps()
    raised: gl.constexpr = 1024 if gl.float16 == DTYPE else 128
    rows: gl.constexpr = 16 * warps * REPEATS
    pairs: gl.constexpr = results_of_unit(BITS)
    units: gl.constexpr = BLOCK // 2 // (8 * pairs)
    layout: gl.constexpr = _values_layout(warps, REPEATS, units)
    by_unit: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, layout))
    by_row: gl.constexpr = gl.SliceLayout(1, by_unit)

    groups: gl.constexpr = 2 if GROUPS == 4 else 1  # of this half
    first = stage * GROUPS + PART * GROUPS // 2
    s0 = _per_row(scale_tiles.index(first), warps, REPEATS, by_row).to(DTYPE)
    s1 = s0
    if groups == 2:
        s1 = _per_row(scale_tiles.index(first + 1), warps, REPEATS, by_row).to(DTYPE)
    z0 = gl.full((rows,), -LOW, gl.int32, by_row)
    z1 = z0
    if HAS_ZERO:
        z0 += _per_row(zero_tiles.index(first), warps, REPEATS, by_row).to(gl.int32)
        if groups == 2:
            z1 += _per_row(zero_tiles.index(first + 1), warps, REPEATS, by_row).to(gl.int32)
    scale = _of_units(s0, s1, units, groups, by_unit)
    if BITS == 8:
        lower = _of_units(
            ((z0 & 15) + raised).to(DTYPE), ((z1 & 15) + raised).to(DTYPE), units, groups, by_unit
        )
        upper = _of_units(
            ((z0 >> 4) + raised).to(DTYPE), ((z1 >> 4) + raised).to(DTYPE), units, groups, by_unit
        )
    else:
        lower = _of_units((z0 + raised).to(DTYPE), (z1 + raised).to(DTYPE), units, groups, by_unit)
        upper = lower

    thread = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, layout))))
    start: gl.constexpr = bits_of_thread(BITS, 0)
    step: gl.constexpr = bits_of_thread(BITS, 1) - start
    by_thread = gl.expand_dims(gl.expand_dims(gl.expand_dims(start + thread * step, 0), 1), 3)
    by_thread += gl.full((1, 1, 4, 2), 0, gl.int32, layout)

    words = word_tiles.index(stage).load(_words_layout(warps, REPEATS, words_of_block(BITS, BLOCK)))
    if BITS == 3:
        a, b, c = _three_words(words, PART)
        a, b, c = _word_of_units(a, by_unit), _word_of_units(b, by_unit), _word_of_units(c, by_unit)
        given = [a, b, c, by_thread, lower, upper, scale]
    elif BITS == 8:
        a, b = gl.split(gl.reshape(_half_of(words, PART), (rows, units, 2)))
        given = [_word_of_units(a, by_unit), _word_of_units(b, by_unit), by_thread, lower, upper, scale]
    else:
        given = [_word_of_units(_half_of(words, PART), by_unit), by_thread, lower, upper, scale]
    code: gl.constexpr = write_assembly(BITS, gl.float16 == DTYPE)
    values = gl.inline_asm_elementwise(code, _registers(BITS), given, _results(BITS, DTYPE), True, 2)
    if pairs == 1:
        ordered = values[0]
    elif pairs == 2:
        ordered = gl.permute(gl.join(values[0], values[1]), (0, 1, 4, 2, 3))
    else:
        joined = gl.join(gl.join(values[0], values[2]), gl.join(values[1], values[3]))
        ordered = gl.permute(joined, (0, 1, 4, 5, 2, 3))
    return gl.convert_layout(gl.reshape(ordered, (rows, BLOCK // 2)), OPERAND, assert_trivial=True)


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
        next_block, next_row, next_vector = _copy(
            x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready,
            ahead, ahead < count, next_block, next_row, next_vector, blocks, across,
            BITS, GROUP, BLOCK, GROUPS, HAS_ZERO,
        )  # fmt: skip
    mbarrier.wait(ready.index(0), 0)
    values = _numbers(
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
            next_block, next_row, next_vector = _copy(
                x, words, scales, zeros, word_tiles, x_tiles, scale_tiles, zero_tiles, ready,
                (block + STAGES - 1) % STAGES, block + STAGES - 1 < count, next_block, next_row, next_vector, blocks,
                across, BITS, GROUP, BLOCK, GROUPS, HAS_ZERO,
            )  # fmt: skip
            others = _numbers(
                word_tiles, scale_tiles, zero_tiles, stage, 1, REPEATS, operand, BITS, dtype, LOW, HAS_ZERO, BLOCK,
                GROUPS,
            )  # fmt: skip
            product = warpgroup_mma(others, _half_of_x(x_tiles, stage, 1), total, is_async=True)
            total, values = warpgroup_mma_wait(1, (product, values))
            values = _numbers(
                word_tiles, scale_tiles, zero_tiles, following, 0, REPEATS, operand, BITS, dtype, LOW, HAS_ZERO,
                BLOCK, GROUPS,
            )  # fmt: skip
        total, others = warpgroup_mma_wait(0, (total, others))
        _finish(
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
def _copy(
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
def _finish(
    total, parts_ptr, counts_ptr, y_ptr, program, tile, blocks, per_program, across, batch, rows,
    REPEATS: gl.constexpr,
):  # fmt: skip
    """Write a tile, or one program's part of it. The first program of a tile adds up its parts, in their order."""
    tall: gl.constexpr = total.shape[0]
    vectors: gl.constexpr = total.shape[1]
    head = tile * blocks // per_program
    others = ((tile + 1) * blocks - 1) // per_program - head
    fours = _in_fours(total, REPEATS)
    if program != head:
        _write_part(fours, parts_ptr + program * (tall * vectors), 0)
        barrier()
        gl.atomic_add(counts_ptr + tile, 1)
    else:
        if others > 0:
            arrived = gl.atomic_add(counts_ptr + tile, 0)
            while arrived < others:
                arrived = gl.atomic_add(counts_ptr + tile, 0)
            barrier()
        first_part = parts_ptr + (head + 1) * (tall * vectors)
        first_row, first_vector = tile // across * tall, tile % across * vectors
        _write(fours, first_part, others, y_ptr, first_row, first_vector, batch, rows, 0, tall, vectors)
        gl.store(counts_ptr + tile, 0)


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
