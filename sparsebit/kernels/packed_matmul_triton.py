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
    rows, units_per_row, groups, low, magic,
    BITS: tl.constexpr, UNIT: tl.constexpr, VALUES: tl.constexpr, HAS_ZERO: tl.constexpr, UNITS_PER_GROUP: tl.constexpr,
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
        group = row * groups + block // UNITS_PER_GROUP
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
def _unpack_pairs(words, dtype: tl.constexpr):
    """The eight tensors of 4-bit values of words, less 8, two neighbours in a register from the start.

    Values are set into the mantissa of a power of two: (a & m) | c is one instruction.
    """
    if dtype == tl.float16:
        values = tl.inline_asm_elementwise(
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
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r", [words],
            (tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True, pack=2,
        )  # fmt: skip
    else:
        values = tl.inline_asm_elementwise(
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
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r", [words],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True, pack=2,
        )  # fmt: skip
    return values


@triton.jit
def _place(words, low, J: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """The values at one place of every word, counted from ``low``, as numbers."""
    return (((words >> (J * BITS)) & ((1 << BITS) - 1)) + low).to(DTYPE)


@triton.jit
def _four(words, low, J: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """Four places behind each other: [rows, words, 2, 2], the first place in the last axis."""
    first = tl.join(_place(words, low, J, BITS, DTYPE), _place(words, low, J + 1, BITS, DTYPE))
    second = tl.join(_place(words, low, J + 2, BITS, DTYPE), _place(words, low, J + 3, BITS, DTYPE))
    return tl.permute(tl.join(first, second), (0, 1, 3, 2))


@triton.jit
def _unpack(words, low, BITS: tl.constexpr, ASM: tl.constexpr, BY_PLACE: tl.constexpr, DTYPE: tl.constexpr):
    """Words [rows, n] as numbers [rows, VALUES * n], counted from ``low``, with ``ASM`` from -8.

    ``BY_PLACE``: first the values at place 0 of all words, then those at 1, ...; in this order nothing moves between
    threads when they are multiplied. Otherwise in the order of the stream.
    """
    rows: tl.constexpr = words.shape[0]
    size: tl.constexpr = words.shape[1] * (32 // BITS)
    if ASM:
        v0, v1, v2, v3, v4, v5, v6, v7 = _unpack_pairs(words, DTYPE)
        first = tl.join(tl.join(v0, v1), tl.join(v2, v3))
        second = tl.join(tl.join(v4, v5), tl.join(v6, v7))
        weight = tl.permute(tl.join(first, second), (0, 4, 3, 2, 1))
    elif BITS == 8:
        four = _four(words, low, 0, BITS, DTYPE)
        weight = tl.permute(four, (0, 2, 3, 1)) if BY_PLACE else four
    elif BITS == 4:
        both = tl.join(_four(words, low, 0, BITS, DTYPE), _four(words, low, 4, BITS, DTYPE))
        weight = tl.permute(both, (0, 4, 2, 3, 1)) if BY_PLACE else tl.permute(both, (0, 1, 4, 2, 3))
    else:
        first = tl.join(_four(words, low, 0, BITS, DTYPE), _four(words, low, 4, BITS, DTYPE))
        second = tl.join(_four(words, low, 8, BITS, DTYPE), _four(words, low, 12, BITS, DTYPE))
        all4 = tl.join(first, second)
        weight = tl.permute(all4, (0, 5, 4, 2, 3, 1)) if BY_PLACE else tl.permute(all4, (0, 1, 5, 4, 2, 3))
    return tl.reshape(weight, (rows, size))


@triton.jit
def arrange(
    x_ptr, arranged_ptr, sums_ptr, units_per_row, batch,
    VALUES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """``x`` in the order that ``_unpack`` gives the channels of each block of words, and its sums [blocks, batch]."""
    size: tl.constexpr = BLOCK * VALUES
    sample = tl.program_id(1)
    block = (tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS))[:, None]
    place = tl.arange(0, size)[None, :]
    here = block * BLOCK < units_per_row
    start = sample * units_per_row * VALUES + block * size
    x = tl.load(
        x_ptr + start + place % BLOCK * VALUES + place // BLOCK, mask=here & (place < size), other=0.0
    )
    tl.store(arranged_ptr + start + place, x, mask=here & (place < size))
    at = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    tl.store(sums_ptr + at * batch + sample, tl.sum(x.to(tl.float32), 1), mask=at * BLOCK < units_per_row)


@triton.jit
def multiply_batch(
    x_ptr, sums_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr,
    batch, rows, units_per_row, groups, units_per_part, low, surplus,
    BITS: tl.constexpr, VALUES: tl.constexpr, HAS_ZERO: tl.constexpr, ASM: tl.constexpr, UNITS_PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``x @ weight.T`` for up to ``BATCH`` vectors, as sums [parts, batch, rows] over parts of the input channels.

    ``x`` and ``sums`` are those of ``arrange``. Where a block has one scale a row, the product is multiplied with it,
    and the zero point is subtracted with the sum of x; otherwise the weight is. ``ASM`` is for 4 bits, and ``surplus``
    what values that count from -8 have to be raised by where ``low`` is not -8.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    sample = tl.arange(0, BATCH)
    total = tl.zeros((ROWS, BATCH), tl.float32)
    begin = part * units_per_part
    stop = tl.minimum(units_per_row, begin + units_per_part)
    inside = row < rows
    at_words = words_ptr + row.to(tl.int64)[:, None] * units_per_row + tl.arange(0, BLOCK)[None, :]
    at_x = x_ptr + sample[None, :] * (units_per_row * VALUES) + tl.arange(0, BLOCK * VALUES)[:, None]
    for start in tl.range(begin, stop, BLOCK, num_stages=STAGES):
        words = tl.load(at_words + start, mask=inside[:, None], other=0)
        x = tl.load(at_x + start * VALUES, mask=(sample < batch)[None, :], other=0.0)
        weight = _unpack(words, low, BITS, ASM, True, dtype)
        if UNITS_PER_GROUP % BLOCK == 0:
            group = row * groups + start // UNITS_PER_GROUP
            scale = tl.load(scale_ptr + group, mask=inside, other=0.0).to(tl.float32)
            found = tl.dot(weight, x)
            if HAS_ZERO:
                zero_point = tl.load(zero_point_ptr + group, mask=inside, other=0).to(tl.float32) + surplus
                sums = tl.load(sums_ptr + (start // BLOCK) * batch + sample, mask=sample < batch, other=0.0)
                found -= zero_point[:, None] * sums[None, :]
            total += found * scale[:, None]
        else:
            word = start + tl.arange(0, BLOCK * VALUES) % BLOCK
            group = row[:, None] * groups + (word // UNITS_PER_GROUP)[None, :]
            scale = tl.load(scale_ptr + group, mask=inside[:, None], other=0.0).to(tl.float32)
            number = weight.to(tl.float32)
            if HAS_ZERO:
                zero_point = tl.load(zero_point_ptr + group, mask=inside[:, None], other=0).to(tl.float32)
                number -= zero_point + surplus
            total = tl.dot((number * scale).to(dtype), x, total)
    at = (part * batch + sample[None, :]) * rows + row[:, None]
    kept = inside[:, None] & (sample < batch)[None, :]
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
    words_ptr, scale_ptr, zero_point_ptr, weight_ptr, rows, units_per_row, groups, low,
    BITS: tl.constexpr, VALUES: tl.constexpr, HAS_ZERO: tl.constexpr, UNITS_PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """The weight in float, in one pass over memory: each thread reads a word and writes its values."""
    across = tl.cdiv(units_per_row, UNITS)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    word = (tl.program_id(0) % across) * UNITS + tl.arange(0, UNITS)[None, :]
    here = (row < rows) & (word < units_per_row)
    at = row * units_per_row + word
    group = row * groups + word // UNITS_PER_GROUP
    scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
    words = tl.load(words_ptr + at, mask=here, other=0)
    steps = tl.reshape(_unpack(words, low, BITS, False, False, tl.float32), (ROWS, UNITS, VALUES))
    if HAS_ZERO:
        steps -= tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32)[:, :, None]
    out = weight_ptr + at[:, :, None] * VALUES + tl.arange(0, VALUES)[None, None, :]
    tl.store(out, (steps * scale[:, :, None]).to(weight_ptr.dtype.element_ty), mask=here[:, :, None])


@triton.jit
def write_numbers_of_3_bits(
    words_ptr, scale_ptr, zero_point_ptr, weight_ptr, rows, channels, groups, low,
    HAS_ZERO: tl.constexpr, GROUP_SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same where values run across words."""
    across = tl.cdiv(channels, COLUMNS)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    here = (row < rows) & (column < channels)
    bit = column * 3
    word = row * (channels // 32 * 3) + bit // 32
    value = tl.load(words_ptr + word, mask=here, other=0).to(tl.uint32, bitcast=True) >> (bit % 32).to(
        tl.uint32
    )
    crosses = here & (bit % 32 > 29)
    following = tl.load(words_ptr + word + 1, mask=crosses, other=0).to(tl.uint32, bitcast=True)
    value = tl.where(crosses, value | (following << (32 - bit % 32).to(tl.uint32)), value)
    group = row * groups + column // GROUP_SIZE
    scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
    steps = (value & 7).to(tl.float32) + low
    if HAS_ZERO:
        steps -= tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32)
    at = row * channels + column
    tl.store(weight_ptr + at, (steps * scale).to(weight_ptr.dtype.element_ty), mask=here)
