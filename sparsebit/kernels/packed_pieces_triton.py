"""Triton kernels for packed weights without matrix units: one vector, and the weight written out.

A thread takes apart pieces of 32 values of a row, which are ``BITS`` words. The layout of the weight is that of
``packed_matmul_triton``. Import only where Triton is installed.
"""

# Triton's own language: its functions have no types, and tuples grow where they are unrolled.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, assignment"

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
def _read_words(words_ptr, BITS: tl.constexpr):
    """``BITS`` neighbouring words of each pointer [n, rows], 16 bytes at once where the width allows."""
    if BITS == 4 or BITS == 8:
        at = words_ptr[:, :, None] + tl.arange(0, 4)[None, None, :]
        pairs: tl.constexpr = (words_ptr.shape[0], words_ptr.shape[1], 2, 2)
        found = _split4(tl.reshape(tl.load(at), pairs))
        if BITS == 8:
            found += _split4(tl.reshape(tl.load(at + 4), pairs))
    elif BITS == 2:
        found = tl.split(tl.load(words_ptr[:, :, None] + tl.arange(0, 2)[None, None, :]))
    else:
        found = (tl.load(words_ptr), tl.load(words_ptr + 1), tl.load(words_ptr + 2))
    return found


@triton.constexpr_function
def _window_size(bits: int) -> int:
    """How many bits of the stream of values are moved into a mantissa at once."""
    return 8 if bits == 8 else 12


@triton.constexpr_function
def _power(index: int, bits: int) -> int:
    """The exponent of the power of two that is added to one value of 32."""
    size = 8 if bits == 8 else 12
    return size - index % (size // bits) * bits


@triton.jit
def _number(words, one, INDEX: tl.constexpr, BITS: tl.constexpr):
    """One value of 32 in ``BITS`` words, plus a power of two, in float32.

    The value's bits are put into the mantissa of that power, which needs no conversion. One shift moves several values
    to the top of a mantissa. ``one`` has the bits of 1.0: of a mask and a power that are both known, the compiler makes
    two instructions instead of one.
    """
    size: tl.constexpr = _window_size(BITS)
    start: tl.constexpr = INDEX // (size // BITS) * size
    power: tl.constexpr = _power(INDEX, BITS)
    shift: tl.constexpr = start % 32 + size - 23
    window = words[start // 32].to(tl.uint32, bitcast=True)
    if shift <= 0:
        window = window << -shift
    else:
        window = window >> shift
        if start % 32 + size > 32 and start // 32 + 1 < BITS:
            window |= words[start // 32 + 1].to(tl.uint32, bitcast=True) << (32 - shift)
    bits: tl.constexpr = ((1 << BITS) - 1) << (23 - power)
    return ((window & bits) | (one + (power << 23))).to(tl.float32, bitcast=True)


@triton.jit
def _channels(x_ptr, inside):
    """Eight neighbouring channels of each pointer as eight tensors in float32."""
    x = tl.load(x_ptr[:, None] + tl.arange(0, 8)[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2, 2)))
    a, c, e, g = _split4(even)
    b, d, f, h = _split4(odd)
    return a, b, c, d, e, f, g, h


@triton.jit
def multiply_vector(
    x_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr, rows, pieces, low, one,
    BITS: tl.constexpr, HAS_ZERO: tl.constexpr, PIECES_PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr, PIECES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """``weight @ x`` for one vector x; ``pieces`` are the sets of 32 channels of a row.

    What was added to the values of a piece is subtracted from its product, together with the zero point. With ``AHEAD``
    the words of the next pieces are read before those of the current ones are multiplied.
    """
    places: tl.constexpr = _window_size(BITS) // BITS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    known = (row < rows)[None, :]
    # What is behind the last row or channel is read from there, and multiplied with 0 or not written.
    at_row = words_ptr + tl.minimum(row, rows - 1).to(tl.int64)[None, :] * pieces * BITS
    total = tl.zeros((PIECES, ROWS), tl.float32)
    if AHEAD:
        next_words = _read_words(at_row + tl.minimum(tl.arange(0, PIECES), pieces - 1)[:, None] * BITS, BITS)
    for first in range(0, pieces, PIECES):
        piece = first + tl.arange(0, PIECES)
        inside = piece < pieces
        group = tl.minimum(piece, pieces - 1)[:, None] // PIECES_PER_GROUP * rows + row[None, :]
        if AHEAD:
            words = next_words
            next_words = _read_words(at_row + tl.minimum(piece + PIECES, pieces - 1)[:, None] * BITS, BITS)
        else:
            words = _read_words(at_row + tl.minimum(piece, pieces - 1)[:, None] * BITS, BITS)
        scale = tl.load(scale_ptr + group, mask=known, other=0.0).to(tl.float32)
        offset = tl.zeros((PIECES, ROWS), tl.float32) - low
        if HAS_ZERO:
            offset += tl.load(zero_point_ptr + group, mask=known, other=0).to(tl.float32)
        at_x = x_ptr + piece * 32
        x = _channels(at_x, inside) + _channels(at_x + 8, inside)
        x = x + _channels(at_x + 16, inside) + _channels(at_x + 24, inside)
        found = _number(words, one, 0, BITS) * x[0][:, None]
        for i in tl.static_range(1, 32):
            found += _number(words, one, i, BITS) * x[i][:, None]
        summed = tl.zeros((PIECES,), tl.float32)
        added = tl.zeros((PIECES,), tl.float32)
        for place in tl.static_range(places):
            of_place = x[place]
            for i in tl.static_range(place + places, 32, places):
                of_place += x[i]
            summed += of_place
            added += of_place * (1 << _power(place, BITS))
        total += (found - added[:, None] - offset * summed[:, None]) * scale
    y = tl.sum(total, 0)
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=row < rows)


@triton.jit
def _halves(v, HALF: tl.constexpr):
    """The second half of some tensors joined to the first one, in a new last axis."""
    found = (tl.join(v[0], v[HALF]),)
    for i in tl.static_range(1, HALF):
        found += (tl.join(v[i], v[i + HALF]),)
    return found


@triton.jit
def write_numbers(
    words_ptr, scale_ptr, zero_point_ptr, weight_ptr, rows, first, end, pieces, low, one,
    BITS: tl.constexpr, HAS_ZERO: tl.constexpr, GROUP_SIZE: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Rows ``first`` to ``end`` of the weight in float, in one pass over memory."""
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    index = tl.program_id(0) * PIECES + tl.arange(0, PIECES)[:, None]
    here = index < (end - first) * pieces
    row = tl.minimum(index // pieces + first, rows - 1)
    piece = index % pieces
    words = _read_words(words_ptr + (row.to(tl.int64) * pieces + piece) * BITS, BITS)
    found = ()
    for i in tl.static_range(32):
        if i % GROUP_SIZE == 0:
            group = (piece * 32 + i) // GROUP_SIZE * rows + row
            scale = tl.load(scale_ptr + group).to(tl.float32)
            offset = tl.zeros((PIECES, 1), tl.float32) - low
            if HAS_ZERO:
                offset += tl.load(zero_point_ptr + group).to(tl.float32)
        number = _number(words, one, i, BITS) - (offset + (1 << _power(i, BITS)))
        number = (number * scale).to(dtype)
        found += (number,)
    found = _halves(_halves(_halves(_halves(_halves(found, 16), 8), 4), 2), 1)
    at = index.to(tl.int64) * 32 + tl.arange(0, 32)[None, :]
    tl.store(weight_ptr + at, tl.reshape(found[0], (PIECES, 32)), mask=here)
