"""Triton kernels for products with a weight that stays packed. Import only where Triton is installed.

A row of the weight is a little-endian stream of values in 32-bit words. A unit is one word of 16, 8 or 4 values of 2, 4
or 8 bits, or three words of 32 values of 3 bits. A value ``q`` stands for ``(q + low - zero_point) * scale``.
Scales and zero points are [groups, rows]: those of neighbouring rows are read together.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def write_assembly(bits: int, is_float16: bool, scaled: bool) -> str:
    """PTX that unpacks the values of two units, as pairs of 16-bit numbers in one register.

    A value is set into the mantissa of a power of two, of which ``magic`` has the bits: (a & mask) | magic is one
    instruction, and no conversion is needed. The same 16 bits of both units come together first. With ``scaled`` an
    offset is subtracted, which is exact, one for even and one for odd places, and the difference is multiplied with a
    scale; without, values stay raised by that power.
    """
    twice = 0x10001  # a number of 16 bits in both halves of a register
    magic, kind = (0x6400, "f16x2") if is_float16 else (0x4300, "bf16x2")  # 1024.0 and 128.0
    minus_one = 0xBC00 if is_float16 else 0xBF80
    words = 3 if bits == 3 else 1
    bits = min(bits, 4)
    count = 32 * words // bits
    lines = [f".reg .b32 t, u, {', '.join(f'h{i}' for i in range(2 * words))};"]
    if scaled:
        lines.append(".reg .b32 minus_one, minus_zero;")
        lines.append(f"mov.b32 minus_one, 0x{minus_one * twice:X}; mov.b32 minus_zero, 0x80008000;")
    for word in range(words):
        one, other = f"${count + 2 * word}", f"${count + 2 * word + 1}"
        lines += [
            f"prmt.b32 h{2 * word}, {one}, {other}, 0x5410;",
            f"prmt.b32 h{2 * word + 1}, {one}, {other}, 0x7632;",
        ]
    for value in range(count):
        half, offset = divmod(value * bits, 16)
        inside = min(bits, 16 - offset)  # bits of the value in this half; the others begin the next one
        taken = f"h{half}"
        if offset:
            lines.append(f"shr.u32 t, {taken}, {offset};")
            taken = "t"
        lines.append(
            f"lop3.b32 ${value}, {taken}, 0x{((1 << inside) - 1) * twice:X}, 0x{magic * twice:X}, 0xEA;"
        )
        if inside < bits:
            lines.append(f"shl.b32 u, h{half + 1}, {inside};")
            rest = ((1 << bits) - 1) ^ ((1 << inside) - 1)
            lines.append(f"lop3.b32 ${value}, u, 0x{rest * twice:X}, ${value}, 0xEA;")
        if scaled:
            # Not sub and mul, which devices before Hopper do not have for bfloat16.
            first = count + 2 * words
            lines.append(f"fma.rn.{kind} ${value}, ${first + value % 2}, minus_one, ${value};")
            lines.append(f"fma.rn.{kind} ${value}, ${value}, ${first + 2}, minus_zero;")
    return "{ " + " ".join(lines) + " }"


@triton.constexpr_function
def _registers(bits: int, inputs: int) -> str:
    """The register constraints: results, then the given number of inputs."""
    return ",".join(["=&r"] * {2: 16, 3: 32}.get(bits, 8) + ["r"] * inputs)


@triton.constexpr_function
def _results(bits: int, dtype: tl.dtype) -> tuple[tl.dtype, ...]:
    return (dtype,) * {2: 16, 3: 32}.get(bits, 8)


@triton.jit
def _values(w0, w1, w2, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """The values of each unit, raised by 128 or 1024, a tensor for each place. Of 8 bits: two halves."""
    code: tl.constexpr = write_assembly(BITS, tl.float16 == DTYPE, False)
    kinds: tl.constexpr = _results(BITS, DTYPE)
    if BITS == 3:
        found = tl.inline_asm_elementwise(code, _registers(BITS, 6), [w0, w1, w2], kinds, True, 2)
    else:
        found = tl.inline_asm_elementwise(code, _registers(BITS, 2), [w0], kinds, True, 2)
    return found


@triton.jit
def _scaled_values(w0, w1, w2, even, odd, scale, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """``(value - offset) * scale`` of each unit, with the offsets of even and of odd places."""
    code: tl.constexpr = write_assembly(BITS, tl.float16 == DTYPE, True)
    kinds: tl.constexpr = _results(BITS, DTYPE)
    if BITS == 3:
        given = [w0, w1, w2, even, odd, scale]
        found = tl.inline_asm_elementwise(code, _registers(BITS, 9), given, kinds, True, 2)
    else:
        given = [w0, even, odd, scale]
        found = tl.inline_asm_elementwise(code, _registers(BITS, 5), given, kinds, True, 2)
    return found


@triton.jit
def _join4(a, b, c, d):
    return tl.join(tl.join(a, b), tl.join(c, d))


@triton.jit
def _join8(a, b, c, d, e, f, g, h):
    return tl.join(_join4(a, b, c, d), _join4(e, f, g, h))


@triton.jit
def _in_order(v, BITS: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Tensors [rows, BLOCK], one for each place, as [rows, SIZE] in the order of ``_ordered``."""
    rows: tl.constexpr = v[0].shape[0]
    paired: tl.constexpr = BLOCK == 4 or BLOCK == 8
    if BITS == 3:
        first = tl.join(_join8(*v[0:8]), _join8(*v[8:16]))
        joined = tl.join(first, tl.join(_join8(*v[16:24]), _join8(*v[24:32])))
        joined = tl.permute(joined, (0, 6, 5, 4, 3, 1, 2) if paired else (0, 6, 5, 4, 3, 2, 1))
    elif BITS == 2:
        joined = tl.join(_join8(*v[0:8]), _join8(*v[8:16]))
        joined = tl.permute(joined, (0, 5, 4, 3, 1, 2) if paired else (0, 5, 4, 3, 2, 1))
    else:
        joined = tl.permute(_join8(*v), (0, 4, 3, 1, 2) if paired else (0, 4, 3, 2, 1))
    return tl.reshape(joined, (rows, SIZE))


@triton.jit
def _ordered(x, BITS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr):
    """Channels [n, size] of one block in the order of the matrix units, [n, BLOCK * PLACES].

    It is chosen so that a thread multiplies the units that it has taken apart, and nothing moves between threads: all
    values at place 0, then those at 1, ...; with fewer than 16 units the places 2 i and 2 i + 1 of each unit together.
    Values of 8 bits meet a channel with both halves: a sixteenth of it with the lower one.
    """
    n: tl.constexpr = x.shape[0]
    if BITS == 8:
        x = tl.join((x * 0.0625).to(x.dtype), x)
    if BLOCK == 4 or BLOCK == 8:
        x = tl.permute(tl.reshape(x, (n, BLOCK, PLACES // 2, 2)), (0, 2, 1, 3))
    else:
        x = tl.permute(tl.reshape(x, (n, BLOCK, PLACES)), (0, 2, 1))
    return tl.reshape(x, (n, BLOCK * PLACES))


@triton.jit
def arrange(
    x_ptr, arranged_ptr, sums_ptr, blocks, vectors,
    BITS: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """``x`` in the order of ``_ordered``, block by block, and its sums [blocks, vectors]."""
    size: tl.constexpr = BLOCK * PLACES
    given: tl.constexpr = size // 2 if BITS == 8 else size
    sample = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    here = (block < blocks)[:, None]
    at = (sample * blocks + block)[:, None]
    x = tl.load(x_ptr + at * given + tl.arange(0, given)[None, :], mask=here, other=0.0)
    x = _ordered(x, BITS, PLACES, BLOCK)
    tl.store(arranged_ptr + at * size + tl.arange(0, size)[None, :], x, mask=here)
    tl.store(sums_ptr + block * vectors + sample, tl.sum(x.to(tl.float32), 1), mask=block < blocks)


@triton.jit
def _load(pointer, known, MASKED: tl.constexpr):
    """What is there; with ``MASKED`` 0 where it is not ``known``.

    Without masks there are fewer instructions, which is faster for up to 8 vectors. For more, the compiler then reads
    scales after the product instead of before it, which is slower.
    """
    return tl.load(pointer, mask=known, other=0) if MASKED else tl.load(pointer)


@triton.jit
def multiply(
    x_ptr, sums_ptr, words_ptr, scale_ptr, zero_point_ptr, parts_ptr, counts_ptr, y_ptr,
    batch, rows, units_per_row, per_program,
    LOW: tl.constexpr, BITS: tl.constexpr, UNIT: tl.constexpr, PLACES: tl.constexpr, HAS_ZERO: tl.constexpr,
    UNITS_PER_GROUP: tl.constexpr, SCALED: tl.constexpr, MASKED: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``x @ weight.T`` for up to ``BATCH`` vectors; x and sums are those of ``arrange``.

    The blocks of all tiles of rows, one tile behind the other, are divided evenly among the programs. The program that
    comes last to a tile adds up the parts of it, always in the same order. ``AT_ONCE`` blocks are read together: memory
    is faster when it is read in longer pieces. With ``SCALED``, for blocks with several scales, values are scaled
    one by one in half precision; otherwise the product of a block is, and what values are raised by is subtracted
    with the sum of x.
    """
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    raised: tl.constexpr = 1024.0 if dtype == tl.float16 else 128.0
    size: tl.constexpr = BLOCK * PLACES
    # Of 8 bits a value has two halves: the sum of what they meet is 17 / 16 of the channels' own.
    share: tl.constexpr = 1.0 / 17.0 if BITS == 8 else 1.0
    program = tl.program_id(0)
    blocks = units_per_row // BLOCK
    sample = tl.arange(0, BATCH)
    unit = tl.arange(0, BLOCK)
    at = program * per_program
    stop = tl.minimum(at + per_program, tl.cdiv(rows, ROWS) * blocks)
    while at < stop:
        tile = at // blocks
        begin = at - tile * blocks
        end = tl.minimum(blocks, begin + stop - at)
        row = tile * ROWS + tl.arange(0, ROWS)
        # Rows behind the last one are read from the last one, and not written; nor are vectors behind the last one.
        read = tl.minimum(row, rows - 1)
        at_words = words_ptr + (read.to(tl.int64)[:, None] * units_per_row + unit[None, :]) * UNIT
        total = tl.zeros((ROWS, BATCH), tl.float32)
        inside = row < rows
        at_group = begin * BLOCK // UNITS_PER_GROUP * rows + read
        next_scale = _load(scale_ptr + at_group, inside, MASKED)
        next_zero = _load(zero_point_ptr + at_group, inside, MASKED) if HAS_ZERO else next_scale
        for first in tl.range(begin, end, AT_ONCE, num_stages=STAGES):
            for one in tl.static_range(AT_ONCE):
                block = first + one
                start = block * BLOCK
                here = (inside & (block < end))[:, None]
                w0 = _load(at_words + start * UNIT, here, MASKED)
                w1 = w0
                w2 = w0
                if UNIT == 3:
                    w1 = _load(at_words + start * UNIT + 1, here, MASKED)
                    w2 = _load(at_words + start * UNIT + 2, here, MASKED)
                place = tl.arange(0, size)
                known = (sample < batch) & (block < end)
                at_x = x_ptr + sample[None, :] * (blocks * size) + block * size + place[:, None]
                x = _load(at_x, known[None, :], MASKED)
                if SCALED:
                    if UNITS_PER_GROUP % BLOCK == 0:
                        group = (start // UNITS_PER_GROUP * rows + read)[:, None]
                    else:
                        group = ((start + unit) // UNITS_PER_GROUP)[None, :] * rows + read[:, None]
                    scale = tl.broadcast_to(_load(scale_ptr + group, here, MASKED), (ROWS, BLOCK))
                    zero = tl.full((ROWS, BLOCK), -LOW, tl.int32)
                    if HAS_ZERO:
                        zero += _load(zero_point_ptr + group, here, MASKED)
                    scale = scale.to(dtype)
                    even = ((zero & 15 if BITS == 8 else zero) + raised).to(dtype)
                    odd = ((zero >> 4 if BITS == 8 else zero) + raised).to(dtype)
                    v = _scaled_values(w0, w1, w2, even, odd, scale, BITS, dtype)
                    total = tl.dot(_in_order(v, BITS, BLOCK, size), x, total)
                else:
                    scale = next_scale.to(tl.float32)
                    offset = (next_zero.to(tl.float32) if HAS_ZERO else tl.zeros((ROWS,), tl.float32)) - LOW
                    offset = offset * share + raised
                    # Those of the next block, so that nothing waits for them there.
                    at_group = tl.minimum(block + 1, blocks - 1) * BLOCK // UNITS_PER_GROUP * rows + read
                    later = inside & (block + 1 < end)
                    next_scale = _load(scale_ptr + at_group, later, MASKED)
                    next_zero = _load(zero_point_ptr + at_group, later, MASKED) if HAS_ZERO else next_scale
                    sums = _load(sums_ptr + block * BATCH + sample, known, MASKED)[None, :]
                    v = _values(w0, w1, w2, BITS, dtype)
                    found = tl.dot(_in_order(v, BITS, BLOCK, size), x)
                    total += (found - offset[:, None] * sums) * scale[:, None]
        if BITS == 8:
            total *= 16.0
        head = tile * blocks // per_program
        count = ((tile + 1) * blocks - 1) // per_program - head + 1
        where = sample[None, :] * rows + row[:, None]
        kept = inside[:, None] & (sample < batch)[None, :]
        if count == 1:
            tl.store(y_ptr + where, total.to(dtype), mask=kept)
        else:
            tl.store(parts_ptr + (program - head) * (batch * rows) + where, total, mask=kept)
            tl.debug_barrier()
            if tl.atomic_add(counts_ptr + tile, 1) == count - 1:
                total = tl.zeros((ROWS, BATCH), tl.float32)
                for part in tl.static_range(PARTS):
                    at_part = parts_ptr + part * (batch * rows) + where
                    total += tl.load(at_part, mask=kept & (part < count), other=0.0, cache_modifier=".cg")
                tl.store(y_ptr + where, total.to(dtype), mask=kept)
                tl.store(counts_ptr + tile, 0)
        at = tile * blocks + end
