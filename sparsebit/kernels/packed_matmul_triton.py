"""Triton kernels for products with a weight that stays packed. Import only where Triton is installed.

A row of the weight is a little-endian stream of values in 32-bit words. ``UNIT`` words hold ``VALUES`` values: one word
of 16, 8 or 4 values of 2, 4 or 8 bits, three words of 32 values of 3 bits. A value ``q`` stands for
``(q + low - zero_point) * scale``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _shifted(w0, w1, w2, BIT: tl.constexpr, BITS: tl.constexpr, TO: tl.constexpr):
    """Three words, or one three times, with their bits from ``BIT`` on at bit ``TO``, and other bits around them."""
    bit: tl.constexpr = BIT % 32
    word = w0 if BIT < 32 else w1 if BIT < 64 else w2
    if bit + BITS > 32:
        following = w1 if BIT < 32 else w2
        low = (word.to(tl.uint32, bitcast=True) >> bit).to(tl.int32, bitcast=True)
        return (low | (following << (32 - bit))) << TO
    if bit > TO:
        return word >> (bit - TO)
    return word << (TO - bit)


@triton.jit
def _mantissa(w0, w1, w2, magic, J: tl.constexpr, BITS: tl.constexpr):
    """Value ``J`` of a unit set into the mantissa of a power of two, which is 256 + q, or 128 + q * 2**n.

    That is a number without a conversion, which is a slow instruction. Up to four values have their places behind each
    other, so that they come from one shift of their word. ``magic``, the bits of that power, comes from outside: the
    compiler does not know it then, and masks and sets bits in one instruction.
    """
    places: tl.constexpr = 1 if BITS == 8 else 3 if BITS == 4 else 4
    base: tl.constexpr = 15 if BITS == 8 else 11
    first: tl.constexpr = J // places * places
    place: tl.constexpr = base + BITS * (J - first)
    if (first * BITS) // 32 == (J * BITS + BITS - 1) // 32:
        bits = _shifted(w0, w1, w2, first * BITS, BITS, base)
    else:
        bits = _shifted(w0, w1, w2, J * BITS, BITS, place)
    mask: tl.constexpr = ((1 << BITS) - 1) << place
    return ((bits & mask) | magic).to(tl.float32, bitcast=True)


@triton.jit
def _unit_of(J: tl.constexpr, BITS: tl.constexpr):
    """What 1 of value ``J`` has to be multiplied with behind ``_mantissa``."""
    places: tl.constexpr = 1 if BITS == 8 else 3 if BITS == 4 else 4
    exponent: tl.constexpr = 0 if BITS == 8 else 5 - BITS * (J % places)
    return 2.0**exponent


@triton.jit
def multiply_vector(
    x_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr,
    rows, units_per_row, groups, units_per_group, low, magic,
    BITS: tl.constexpr, UNIT: tl.constexpr, VALUES: tl.constexpr, HAS_ZERO: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``y = weight @ x`` for one vector, in float32: each program takes ``ROWS`` rows; a block has one scale a row.

    What the powers of two of ``_mantissa`` add is known from x alone, and subtracted.
    """
    offset: tl.constexpr = 256.0 if BITS == 8 else 128.0
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None, None]
    sample = tl.program_id(1)
    x_ptr += sample * units_per_row * VALUES
    inside = row < rows
    total = tl.zeros((ROWS, BLOCKS, BLOCK), tl.float32)
    for start in tl.range(0, units_per_row, BLOCKS * BLOCK, num_stages=STAGES):
        block = start + tl.arange(0, BLOCKS)[None, :, None] * BLOCK
        unit = block + tl.arange(0, BLOCK)[None, None, :]
        there = unit < units_per_row
        at = words_ptr + (row * units_per_row + unit) * UNIT
        w0 = tl.load(at, mask=inside & there, other=0)
        w1 = tl.load(at + 1, mask=inside & there, other=0) if UNIT == 3 else w0
        w2 = tl.load(at + 2, mask=inside & there, other=0) if UNIT == 3 else w0
        group = row * groups + block // units_per_group
        known = inside & (block < units_per_row)
        scale = tl.load(scale_ptr + group, mask=known, other=0.0).to(tl.float32)
        sum_x = tl.zeros((1, BLOCKS, BLOCK), tl.float32)
        added = tl.zeros((1, BLOCKS, BLOCK), tl.float32)
        part = tl.zeros((ROWS, BLOCKS, BLOCK), tl.float32)
        for j in tl.static_range(VALUES):
            x = tl.load(x_ptr + unit * VALUES + j, mask=there, other=0.0).to(tl.float32)
            scaled = x * _unit_of(j, BITS)
            sum_x += x
            added += scaled
            part += _mantissa(w0, w1, w2, magic, j, BITS) * scaled
        part += low * sum_x - offset * added
        if HAS_ZERO:
            part -= tl.load(zero_point_ptr + group, mask=known, other=0).to(tl.float32) * sum_x
        total += part * scale
    y = tl.sum(tl.reshape(total, (ROWS, BLOCKS * BLOCK)), 1)
    out = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(y_ptr + sample * rows + out, y.to(y_ptr.dtype.element_ty), mask=out < rows)


@triton.jit
def _unpack_pairs(words, FP16: tl.constexpr):
    """The eight tensors of 4-bit values of words, minus 8, two neighbours in a register from the start."""
    if FP16:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 a, b, m, c, s;
            mov.u32 m, 0x000F000F;
            mov.u32 c, 0x64006400;
            mov.u32 s, 0x64086408;
            prmt.b32 a, $8, $9, 0x5410;
            prmt.b32 b, $8, $9, 0x7632;
            lop3.b32 $0, a, m, c, 0xEA;
            sub.f16x2 $0, $0, s;
            shr.u32 a, a, 4;
            lop3.b32 $1, a, m, c, 0xEA;
            sub.f16x2 $1, $1, s;
            shr.u32 a, a, 4;
            lop3.b32 $2, a, m, c, 0xEA;
            sub.f16x2 $2, $2, s;
            shr.u32 a, a, 4;
            lop3.b32 $3, a, m, c, 0xEA;
            sub.f16x2 $3, $3, s;
            lop3.b32 $4, b, m, c, 0xEA;
            sub.f16x2 $4, $4, s;
            shr.u32 b, b, 4;
            lop3.b32 $5, b, m, c, 0xEA;
            sub.f16x2 $5, $5, s;
            shr.u32 b, b, 4;
            lop3.b32 $6, b, m, c, 0xEA;
            sub.f16x2 $6, $6, s;
            shr.u32 b, b, 4;
            lop3.b32 $7, b, m, c, 0xEA;
            sub.f16x2 $7, $7, s;
            }
            """,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r",
            [words],
            dtype=(
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
                tl.float16,
            ),
            is_pure=True,
            pack=2,
        )
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 a, b, m, c, s;
        mov.u32 m, 0x000F000F;
        mov.u32 c, 0x43004300;
        mov.u32 s, 0x43084308;
        prmt.b32 a, $8, $9, 0x5410;
        prmt.b32 b, $8, $9, 0x7632;
        lop3.b32 $0, a, m, c, 0xEA;
        sub.bf16x2 $0, $0, s;
        shr.u32 a, a, 4;
        lop3.b32 $1, a, m, c, 0xEA;
        sub.bf16x2 $1, $1, s;
        shr.u32 a, a, 4;
        lop3.b32 $2, a, m, c, 0xEA;
        sub.bf16x2 $2, $2, s;
        shr.u32 a, a, 4;
        lop3.b32 $3, a, m, c, 0xEA;
        sub.bf16x2 $3, $3, s;
        lop3.b32 $4, b, m, c, 0xEA;
        sub.bf16x2 $4, $4, s;
        shr.u32 b, b, 4;
        lop3.b32 $5, b, m, c, 0xEA;
        sub.bf16x2 $5, $5, s;
        shr.u32 b, b, 4;
        lop3.b32 $6, b, m, c, 0xEA;
        sub.bf16x2 $6, $6, s;
        shr.u32 b, b, 4;
        lop3.b32 $7, b, m, c, 0xEA;
        sub.bf16x2 $7, $7, s;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r",
        [words],
        dtype=(
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
            tl.bfloat16,
        ),
        is_pure=True,
        pack=2,
    )


@triton.jit
def multiply_batch(
    x_ptr, sums_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr,
    batch, rows, units_per_row, groups, units_per_group, units_per_part, shift,
    BITS: tl.constexpr, VALUES: tl.constexpr, HAS_ZERO: tl.constexpr, ONE_SCALE: tl.constexpr, ASM: tl.constexpr,
    ROWS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``x @ weight.T`` for up to ``BATCH`` vectors, as sums [parts, batch, rows] over parts of the input channels.

    ``x`` comes as [VALUES, batch, units], so that the values at one place of all words are a matrix of its own: nothing
    moves between threads. With ``ONE_SCALE`` a block has one scale a row, which the product is multiplied with;
    otherwise the weight is. ``sums`` [blocks, batch] are those of x, where a block has one zero point a row. With
    ``ASM`` (4 bits) values are unpacked in pairs, less 8, which then has to be the ``shift``.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    sample = tl.arange(0, BATCH)
    total = tl.zeros((ROWS, BATCH), tl.float32)
    begin = part * units_per_part
    stop = tl.minimum(units_per_row, begin + units_per_part)
    at_row = row.to(tl.int64)[:, None] * units_per_row
    for start in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        word = start + tl.arange(0, BLOCK)
        here = (row < rows)[:, None] & (word < stop)[None, :]
        words = tl.load(words_ptr + at_row + word[None, :], mask=here, other=0)
        known = (sample < batch)[None, :] & (word < stop)[:, None]
        at_x = x_ptr + sample[None, :] * units_per_row + word[:, None]
        if ONE_SCALE:
            group = (row * groups + start // units_per_group)[:, None]
            known_group = (row < rows)[:, None]
        else:
            group = row[:, None] * groups + (word // units_per_group)[None, :]
            known_group = here
        scale = tl.load(scale_ptr + group, mask=known_group, other=0.0).to(tl.float32)
        zero_point = tl.zeros_like(scale)
        if HAS_ZERO:
            zero_point = tl.load(zero_point_ptr + group, mask=known_group, other=0).to(tl.float32)
        found = tl.zeros((ROWS, BATCH), tl.float32)
        unpacked = _unpack_pairs(words, x_ptr.dtype.element_ty == tl.float16) if ASM else words
        for j in tl.static_range(VALUES):
            x = tl.load(at_x + j * batch * units_per_row, mask=known, other=0.0)
            value = unpacked[j] if ASM else ((words >> (j * BITS)) & ((1 << BITS) - 1)) - shift
            if ONE_SCALE:
                found = tl.dot(value.to(x.dtype), x, found)
            else:
                total = tl.dot(((value.to(tl.float32) - zero_point) * scale).to(x.dtype), x, total)
        if ONE_SCALE:
            if HAS_ZERO:
                at_sums = sums_ptr + (start // BLOCK) * batch + sample
                sums = tl.load(at_sums, mask=sample < batch, other=0.0)
                found -= zero_point * sums[None, :]
            total += found * scale
    at = (part * batch + sample[None, :]) * rows + row[:, None]
    kept = (row < rows)[:, None] & (sample < batch)[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def add_parts(sums_ptr, y_ptr, count, parts, TILE: tl.constexpr):
    """Sums [parts, count] to ``y`` [count], always in the same order."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE,), tl.float32)
    for part in range(parts):
        total += tl.load(sums_ptr + part * count + at, mask=at < count, other=0.0)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=at < count)


@triton.jit
def write_numbers(
    words_ptr, scale_ptr, zero_point_ptr, weight_ptr,
    rows, units_per_row, groups, units_per_group, low,
    BITS: tl.constexpr, UNIT: tl.constexpr, VALUES: tl.constexpr, HAS_ZERO: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """The weight in float, in one pass over memory: each thread writes neighbours, and reads a word for all of them."""
    across = tl.cdiv(units_per_row, UNITS)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % across) * (UNITS * VALUES) + tl.arange(0, UNITS * VALUES)[None, :]
    here = (row < rows) & (column < units_per_row * VALUES)
    unit = column // VALUES
    bit = (column % VALUES) * BITS
    word = (row * units_per_row + unit) * UNIT + bit // 32
    value = tl.load(words_ptr + word, mask=here, other=0).to(tl.uint32, bitcast=True) >> (bit % 32).to(
        tl.uint32
    )
    if BITS == 3:
        crosses = here & (bit % 32 > 29)
        following = tl.load(words_ptr + word + 1, mask=crosses, other=0).to(tl.uint32, bitcast=True)
        value = tl.where(crosses, value | (following << (32 - bit % 32).to(tl.uint32)), value)
    group = row * groups + unit // units_per_group
    scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
    steps = (value & ((1 << BITS) - 1)).to(tl.float32) + low
    if HAS_ZERO:
        steps -= tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32)
    at = row * (units_per_row * VALUES) + column
    tl.store(weight_ptr + at, (steps * scale).to(weight_ptr.dtype.element_ty), mask=here)
