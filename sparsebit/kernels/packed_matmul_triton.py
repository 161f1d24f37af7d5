"""Triton kernels for products with a weight that stays packed. Import only where Triton is installed.

A row of the weight is a little-endian stream, read here as 32-bit words of ``PER_WORD`` values each. A value ``q``
stands for ``(q + low - zero_point) * scale``.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _numbers(words, zero_point, scale, BITS: tl.constexpr, PER_WORD: tl.constexpr):
    """Words [n, k] with zero point and scale of the same shape as numbers [n, k, PER_WORD].

    Set into the mantissa of 2**23, an integer is a float without a conversion, which is a slow instruction.
    """
    shifts = (tl.arange(0, PER_WORD) * BITS)[None, None, :]
    values = (words[:, :, None] >> shifts) & ((1 << BITS) - 1)
    steps = (values | 0x4B000000).to(tl.float32, bitcast=True) - (zero_point + 8388608.0)[:, :, None]
    return steps * scale[:, :, None]


@triton.jit
def multiply_vector(
    x_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr,
    rows, words_per_row, groups, words_per_group, low,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_WORDS: tl.constexpr,
):  # fmt: skip
    """``y = weight @ x`` for one vector, in float32: each program takes whole rows."""
    row = (tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)
    total = tl.zeros((TILE_ROWS, TILE_WORDS), tl.float32)
    for start in range(0, words_per_row, TILE_WORDS):
        word = start + tl.arange(0, TILE_WORDS)
        there = word < words_per_row
        here = (row < rows)[:, None] & there[None, :]
        packed = tl.load(words_ptr + row[:, None] * words_per_row + word[None, :], mask=here, other=0)
        group = row[:, None] * groups + (word // words_per_group)[None, :]
        scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
        zero_point = tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32) - low
        at = word[:, None] * PER_WORD + tl.arange(0, PER_WORD)[None, :]
        x = tl.load(x_ptr + at, mask=there[:, None], other=0.0).to(tl.float32)
        ones = tl.full((TILE_ROWS, TILE_WORDS), 1.0, tl.float32)
        steps = _numbers(packed, zero_point, ones, BITS, PER_WORD)
        total += tl.sum(steps * x[None, :, :], 2) * scale
    tl.store(y_ptr + row, tl.sum(total, 1).to(y_ptr.dtype.element_ty), mask=row < rows)


@triton.jit
def multiply_batch(
    x_ptr, words_ptr, scale_ptr, zero_point_ptr, y_ptr,
    batch, rows, words_per_row, groups, words_per_group, words_per_part, low,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, BATCH: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_WORDS: tl.constexpr,
):  # fmt: skip
    """``x @ weight.T`` for up to ``BATCH`` vectors, as sums [parts, batch, rows] over parts of the input channels."""
    row = (tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)
    part = tl.program_id(1)
    sample = tl.arange(0, BATCH)
    total = tl.zeros((TILE_ROWS, BATCH), tl.float32)
    channels = words_per_row * PER_WORD
    stop = tl.minimum(words_per_row, (part + 1) * words_per_part)
    for start in range(part * words_per_part, stop, TILE_WORDS):
        word = start + tl.arange(0, TILE_WORDS)
        here = (row < rows)[:, None] & (word < stop)[None, :]
        packed = tl.load(words_ptr + row[:, None] * words_per_row + word[None, :], mask=here, other=0)
        group = row[:, None] * groups + (word // words_per_group)[None, :]
        scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
        zero_point = tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32) - low
        numbers = _numbers(packed, zero_point, scale, BITS, PER_WORD).to(x_ptr.dtype.element_ty)
        weight = tl.reshape(numbers, (TILE_ROWS, TILE_WORDS * PER_WORD))
        channel = start * PER_WORD + tl.arange(0, TILE_WORDS * PER_WORD)
        known = (sample < batch)[None, :] & (channel < stop * PER_WORD)[:, None]
        x = tl.load(x_ptr + sample[None, :] * channels + channel[:, None], mask=known, other=0.0)
        total = tl.dot(weight, x, total)
    at = (part * batch + sample[None, :]) * rows + row[:, None]
    kept = (row < rows)[:, None] & (sample < batch)[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def write_numbers(
    words_ptr, scale_ptr, zero_point_ptr, weight_ptr,
    rows, words_per_row, groups, words_per_group, low,
    BITS: tl.constexpr, PER_WORD: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_WORDS: tl.constexpr,
):  # fmt: skip
    """The weight in float, in one pass over memory."""
    across = tl.cdiv(words_per_row, TILE_WORDS)
    row = (tl.program_id(0) // across).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    word = (tl.program_id(0) % across) * TILE_WORDS + tl.arange(0, TILE_WORDS)
    here = (row < rows)[:, None] & (word < words_per_row)[None, :]
    place = row[:, None] * words_per_row + word[None, :]
    packed = tl.load(words_ptr + place, mask=here, other=0)
    group = row[:, None] * groups + (word // words_per_group)[None, :]
    scale = tl.load(scale_ptr + group, mask=here, other=0.0).to(tl.float32)
    zero_point = tl.load(zero_point_ptr + group, mask=here, other=0).to(tl.float32) - low
    numbers = _numbers(packed, zero_point, scale, BITS, PER_WORD).to(weight_ptr.dtype.element_ty)
    at = place[:, :, None] * PER_WORD + tl.arange(0, PER_WORD)[None, None, :]
    tl.store(weight_ptr + at, numbers, mask=here[:, :, None])
