"""Unpacking a weight on Hopper, inside ``packed_warpgroup_gluon``: each thread unpacks the values it multiplies.

Import only if Triton is installed. Weights are packed as in ``packed_matmul_triton``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, no-any-return"

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sparsebit.kernels import packed_warpgroup

words_of_block = triton.constexpr_function(packed_warpgroup.words_of_block)


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
def per_row(tile, WARPS: gl.constexpr, REPEATS: gl.constexpr, LAYOUT: gl.constexpr):
    """Load a tile [1, rows] as [rows]."""
    loaded = tile.load(_row_layout(WARPS, REPEATS))
    return gl.convert_layout(gl.reshape(loaded, (loaded.shape[1],)), LAYOUT, assert_trivial=True)


@gluon.jit
def unpack(
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
    s0 = per_row(scale_tiles.index(first), warps, REPEATS, by_row).to(DTYPE)
    s1 = s0
    if groups == 2:
        s1 = per_row(scale_tiles.index(first + 1), warps, REPEATS, by_row).to(DTYPE)
    z0 = gl.full((rows,), -LOW, gl.int32, by_row)
    z1 = z0
    if HAS_ZERO:
        z0 += per_row(zero_tiles.index(first), warps, REPEATS, by_row).to(gl.int32)
        if groups == 2:
            z1 += per_row(zero_tiles.index(first + 1), warps, REPEATS, by_row).to(gl.int32)
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
