"""Triton kernels for snapping to an integer grid and for its gradients. Import only where Triton is installed.

The arithmetic is that of ``numerics.snapping``, step for step: a division (not a product with the reciprocal), rounded
half to even, then clamped. The backward computes it again from ``x``, so that nothing but ``x`` is kept.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def round_clip(v, low, high):
    """round(v), half to even, and that clipped. Adding 1.5 * 2**23 leaves no bits for a fraction.

    Beyond 2**22, where that fails, ``v`` is outside of every grid, rounded or not. Comparisons with NaN are false, so
    NaN stays.
    """
    rounded = tl.where(tl.abs(v) < 4194304.0, (v + 12582912.0) - 12582912.0, v)
    clipped = tl.where(rounded < low, low, rounded)
    return rounded, tl.where(clipped > high, high, clipped)


@triton.jit
def snap_forward(
    x_ptr, y_ptr, scale_ptr, zero_point_ptr, low, high, rows, width, channels,
    MAGNITUDE: tl.constexpr, RECTIFY: tl.constexpr, BY_COLUMN: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """``y = clip(round(x / scale)) * scale``, one tile for each program; with ``RECTIFY`` of max(x, 0)."""
    across = tl.cdiv(width, TILE_COLUMNS)
    program = tl.program_id(0)
    row = (program // across).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    column = (program % across).to(tl.int64) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    here = (row < rows)[:, None] & (column < width)[None, :]
    at = row[:, None] * width + column[None, :]
    if BY_COLUMN:
        scale = tl.load(scale_ptr + column, mask=column < width, other=1.0)[None, :]
        zero_point = tl.load(zero_point_ptr + column, mask=column < width, other=0.0)[None, :]
    else:
        scale = tl.load(scale_ptr + row % channels)[:, None]
        zero_point = tl.load(zero_point_ptr + row % channels)[:, None]
    if MAGNITUDE:
        scale = tl.abs(scale)
    x = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
    if RECTIFY:
        x = tl.where(x < 0, 0.0, x)
    _, clipped = round_clip(
        tl.div_rn(x, tl.broadcast_to(scale, x.shape)), low - zero_point, high - zero_point
    )
    tl.store(y_ptr + at, (clipped * scale).to(y_ptr.dtype.element_ty), mask=here)


@triton.jit
def snap_backward(
    grad_ptr, x_ptr, to_x_ptr, scale_ptr, zero_point_ptr, to_scale_ptr, to_zero_point_ptr, factor_ptr,
    low, high, gradient_scale, rows, width, channels, chunks, steps,
    LEARNED: tl.constexpr, LEARNED_ZERO: tl.constexpr, LAST: tl.constexpr, HAS_FACTOR: tl.constexpr,
    MAGNITUDE: tl.constexpr, RECTIFY: tl.constexpr, BY_COLUMN: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of ``x``, and sums of those of scale and zero point: [rows, chunks], or [chunks, width] by column.

    Each program takes ``steps`` tiles, along its rows or down its columns. With ``LAST`` its sums are the gradients.
    With ``MAGNITUDE`` the scale counts by its magnitude, with ``RECTIFY`` x is 0 where it is below.
    """
    program = tl.program_id(0)
    if BY_COLUMN:
        across = tl.cdiv(width, TILE_COLUMNS)
        chunk = program // across
        row = chunk.to(tl.int64) * steps * TILE_ROWS + tl.arange(0, TILE_ROWS)
        column = (program % across).to(tl.int64) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        scale = tl.load(scale_ptr + column, mask=column < width, other=1.0)[None, :]
        zero_point = tl.load(zero_point_ptr + column, mask=column < width, other=0.0)[None, :]
    else:
        chunk = program % chunks
        row = (program // chunks).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)
        column = chunk.to(tl.int64) * steps * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
        scale = tl.load(scale_ptr + row % channels)[:, None]
        zero_point = tl.load(zero_point_ptr + row % channels)[:, None]
    sign = tl.where(scale < 0, -1.0, 1.0) if MAGNITUDE else 1.0
    scale = scale * sign
    to_scale = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    to_zero_point = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    for _ in range(steps):
        here = (row < rows)[:, None] & (column < width)[None, :]
        at = row[:, None] * width + column[None, :]
        x = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=here, other=0.0)
        if RECTIFY:
            x = tl.where(x < 0, 0.0, x)
        v = tl.div_rn(x, tl.broadcast_to(scale, x.shape))
        rounded, clipped = round_clip(v, low - zero_point, high - zero_point)
        inside = rounded == clipped
        passed = inside & (x > 0) if RECTIFY else inside
        tl.store(to_x_ptr + at, tl.where(passed, grad, 0.0).to(to_x_ptr.dtype.element_ty), mask=here)
        if LEARNED:
            wide = grad.to(tl.float32)
            to_scale += wide * tl.where(inside, clipped - v, clipped)
            if LEARNED_ZERO:
                to_zero_point += tl.where(inside, 0.0, wide)
        if BY_COLUMN:
            row += TILE_ROWS
        else:
            column += TILE_COLUMNS
    if LEARNED:
        if MAGNITUDE:
            to_scale = to_scale * sign
        axis: tl.constexpr = 0 if BY_COLUMN else 1
        sum_scale, sum_zero_point = tl.sum(to_scale, axis), tl.sum(to_zero_point, axis)
        if BY_COLUMN:
            at_sum = chunk * width + column
            kept = column < width
            factor = tl.reshape(scale, (TILE_COLUMNS,))
        else:
            at_sum = row * chunks + chunk
            kept = row < rows
            factor = tl.reshape(scale, (TILE_ROWS,))
        if LAST:
            if HAS_FACTOR:
                gradient_scale *= tl.load(factor_ptr)
            sum_scale = sum_scale * gradient_scale
            sum_zero_point = sum_zero_point * -factor * gradient_scale
        tl.store(to_scale_ptr + at_sum, sum_scale, mask=kept)
        if LEARNED_ZERO:
            tl.store(to_zero_point_ptr + at_sum, sum_zero_point, mask=kept)


@triton.jit
def add_sums(
    sums_scale_ptr, sums_zero_point_ptr, scale_ptr, to_scale_ptr, to_zero_point_ptr, factor_ptr,
    gradient_scale, outer, channels, inner,
    LEARNED_ZERO: tl.constexpr, HAS_FACTOR: tl.constexpr, MAGNITUDE: tl.constexpr,
    TILE_CHANNELS: tl.constexpr, TILE_SUMS: tl.constexpr,
):  # fmt: skip
    """Sums [outer, channels, inner] to gradients [channels], always in the same order."""
    channel = tl.program_id(0) * TILE_CHANNELS + tl.arange(0, TILE_CHANNELS)
    to_scale = tl.zeros((TILE_SUMS, TILE_CHANNELS), tl.float32)
    to_zero_point = tl.zeros((TILE_SUMS, TILE_CHANNELS), tl.float32)
    for start in range(0, outer * inner, TILE_SUMS):
        k = start + tl.arange(0, TILE_SUMS)
        here = (k < outer * inner)[:, None] & (channel < channels)[None, :]
        at = ((k // inner)[:, None] * channels + channel[None, :]) * inner + (k % inner)[:, None]
        to_scale += tl.load(sums_scale_ptr + at, mask=here, other=0.0)
        if LEARNED_ZERO:
            to_zero_point += tl.load(sums_zero_point_ptr + at, mask=here, other=0.0)
    if HAS_FACTOR:
        gradient_scale *= tl.load(factor_ptr)
    tl.store(to_scale_ptr + channel, tl.sum(to_scale, 0) * gradient_scale, mask=channel < channels)
    if LEARNED_ZERO:
        scale = tl.load(scale_ptr + channel, mask=channel < channels, other=0.0)
        if MAGNITUDE:
            scale = tl.abs(scale)
        total = tl.sum(to_zero_point, 0) * -scale * gradient_scale
        tl.store(to_zero_point_ptr + channel, total, mask=channel < channels)
