"""A Triton kernel for one vector and a packed weight, without matrix units. Import only where Triton is installed.

32 values of ``BITS`` bits are ``BITS`` words, and a thread multiplies them with the 32 channels that it holds. The
layout of the weight is that of ``packed_matmul_triton``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _split4(pairs):
    """The last two axes, of two each, as four tensors."""
    even, odd = tl.split(pairs)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _channels(x_ptr, inside):
    """Eight neighbouring channels of each pointer as eight tensors in float32."""
    x = tl.load(x_ptr[:, None] + tl.arange(0, 8)[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2, 2)))
    a, c, e, g = _split4(even)
    b, d, f, h = _split4(odd)
    return a, b, c, d, e, f, g, h


@triton.jit
def _words(words_ptr, inside, BITS: tl.constexpr):
    """``BITS`` neighbouring words of each pointer [n, rows], read in pieces of 16 bytes where the width allows."""
    if BITS == 4 or BITS == 8:
        at = words_ptr[:, :, None] + tl.arange(0, 4)[None, None, :]
        pairs: tl.constexpr = (words_ptr.shape[0], words_ptr.shape[1], 2, 2)
        found = _split4(tl.reshape(tl.load(at, mask=inside[:, :, None], other=0), pairs))
        if BITS == 8:
            found = found + _split4(tl.reshape(tl.load(at + 4, mask=inside[:, :, None], other=0), pairs))
    elif BITS == 2:
        at = words_ptr[:, :, None] + tl.arange(0, 2)[None, None, :]
        found = tl.split(tl.load(at, mask=inside[:, :, None], other=0))
    else:
        found = (
            tl.load(words_ptr, mask=inside, other=0),
            tl.load(words_ptr + 1, mask=inside, other=0),
            tl.load(words_ptr + 2, mask=inside, other=0),
        )
    return found


@triton.jit
def _number(words, one, INDEX: tl.constexpr, BITS: tl.constexpr):
    """One value of 32 in ``BITS`` words, plus a power of two, in float32.

    The value's bits are put into the mantissa of that power, which needs no conversion. One shift serves as many
    values as 12 bits of the stream hold (8 for a width of 8): they are moved to the top of the mantissa. ``one`` has
    the bits of 1.0: of a mask and a power that are both known, the compiler makes two instructions instead of one.
    """
    size: tl.constexpr = 8 if BITS == 8 else 12
    start: tl.constexpr = INDEX // (size // BITS) * size
    place: tl.constexpr = INDEX % (size // BITS) * BITS
    shift: tl.constexpr = start % 32 + size - 23
    window = words[start // 32].to(tl.uint32, bitcast=True)
    if shift <= 0:
        window = window << -shift
    else:
        window = window >> shift
        if start % 32 + size > 32 and start // 32 + 1 < BITS:
            window |= words[start // 32 + 1].to(tl.uint32, bitcast=True) << (32 - shift)
    bits: tl.constexpr = ((1 << BITS) - 1) << (23 - size + place)
    power = one + ((size - place) << 23)
    return ((window & bits) | power).to(tl.float32, bitcast=True)


@triton.jit
def multiply_vector(
    x_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr, rows, pieces, low, one,
    BITS: tl.constexpr, HAS_ZERO: tl.constexpr, PIECES_PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """``weight @ x`` for one vector x; ``pieces`` are the sets of 32 channels of a row.

    What was added to the values of a piece is subtracted from its product, together with the zero point.
    """
    size: tl.constexpr = 8 if BITS == 8 else 12
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = row < rows
    total = tl.zeros((PIECES, ROWS), tl.float32)
    for first in tl.range(0, pieces, PIECES, num_stages=STAGES):
        piece = first + tl.arange(0, PIECES)
        inside = piece < pieces
        here = inside[:, None] & known[None, :]
        at_words = words_ptr + (row.to(tl.int64)[None, :] * pieces + piece[:, None]) * BITS
        words = _words(at_words, here, BITS)
        group = (piece // PIECES_PER_GROUP)[:, None] * rows + row[None, :]
        scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
        offset = tl.zeros((PIECES, ROWS), tl.float32) - low
        if HAS_ZERO:
            offset += tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32)
        at_x = x_ptr + piece * 32
        x = _channels(at_x, inside) + _channels(at_x + 8, inside)
        x = x + _channels(at_x + 16, inside) + _channels(at_x + 24, inside)
        found = tl.zeros((PIECES, ROWS), tl.float32)
        for i in tl.static_range(32):
            found += _number(words, one, i, BITS) * x[i][:, None]
        summed = tl.zeros((PIECES,), tl.float32)
        added = tl.zeros((PIECES,), tl.float32)
        for place in tl.static_range(size // BITS):
            of_place = x[place]
            for i in tl.static_range(place + size // BITS, 32, size // BITS):
                of_place += x[i]
            summed += of_place
            added += of_place * (1 << (size - place * BITS))
        total += (found - added[:, None] - offset * summed[:, None]) * scale
    y = tl.sum(total, 0)
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=known)
