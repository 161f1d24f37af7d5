"""Triton kernels for snapping to an integer grid and for its gradients. Import only where Triton is installed.

The arithmetic is that of ``numerics.snapping``, to the last bit: a division (not a product with the reciprocal),
rounded half to even, then clamped. The backward computes it again from ``x``, so that nothing but ``x`` is kept.
"""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prepare_division(scale):
    """What ``divide`` needs: a power of two that brings the scale near 1, their product, and its reciprocal."""
    exponent = (scale.to(tl.int32, bitcast=True) >> 23) & 255
    power = (tl.minimum(255 - exponent, 254) << 23).to(tl.float32, bitcast=True)
    near = scale * power
    return power, near, tl.div_rn(tl.full(near.shape, 1.0, tl.float32), near)


@triton.jit
def divide(x, power, near, reciprocal):
    """``x / scale``, rounded as IEEE 754 rounds it, in half of the instructions of a division.

    An estimate is corrected twice by its remainder, which a fused multiply-add computes exactly. The second correction
    rounds correctly (Markstein, IBM Journal of Research and Development 34 (1), 1990, theorem 8.1). Quotients beyond
    2**30 are outside of every grid and stay estimates: infinity has no remainder.
    """
    x = x * power
    estimate = x * reciprocal
    closer = tl.fma(tl.fma(-estimate, near, x), reciprocal, estimate)
    closest = tl.fma(tl.fma(-closer, near, x), reciprocal, closer)
    return tl.where(tl.abs(estimate) < 1073741824.0, closest, estimate)


@triton.jit
def round_clip(v, low, high):
    """round(v), half to even, and the clipped result; NaN stays. Adding 1.5 * 2**23 leaves no bits for a fraction.

    Beyond 2**22, where the sum does have some, ``v`` is outside of every grid, rounded or not.
    """
    rounded = (v + 12582912.0) - 12582912.0
    clipped = tl.maximum(rounded, low, propagate_nan=tl.PropagateNan.ALL)
    return rounded, tl.minimum(clipped, high, propagate_nan=tl.PropagateNan.ALL)


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
    power, near, reciprocal = prepare_division(scale)
    _, clipped = round_clip(divide(x, power, near, reciprocal), low - zero_point, high - zero_point)
    tl.store(y_ptr + at, (clipped * scale).to(y_ptr.dtype.element_ty), mask=here)


@triton.jit
def snap_backward(
    grad_ptr, x_ptr, to_x_ptr, scale_ptr, zero_point_ptr, sums_scale_ptr, sums_zero_point_ptr, to_scale_ptr,
    to_zero_point_ptr, factor_ptr, counter_ptr,
    low, high, gradient_scale, rows, width, channels, chunks, steps, outer, inner,
    LEARNED: tl.constexpr, LEARNED_ZERO: tl.constexpr, LAST: tl.constexpr, TOGETHER: tl.constexpr,
    HAS_FACTOR: tl.constexpr, MAGNITUDE: tl.constexpr, RECTIFY: tl.constexpr, CLIP: tl.constexpr,
    BY_COLUMN: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, TILE_CHANNELS: tl.constexpr,
    TILE_SUMS: tl.constexpr,
):  # fmt: skip
    """Gradients of ``x``, and sums of those of scale and zero point: [rows, chunks], or [chunks, width] by column.

    Each program takes ``steps`` tiles, along its rows or down its columns. With ``LAST`` its sums are the gradients;
    with ``TOGETHER`` the program that ends last adds up all sums; otherwise ``add_sums`` does.
    With ``MAGNITUDE`` the scale counts by its magnitude, with ``RECTIFY`` x is 0 where it is below. With ``CLIP`` the
    gradients are those of a clip to [low, high] times the scale, and rounding counts for nothing.
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
    power, near, reciprocal = prepare_division(scale)
    to_scale = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    to_zero_point = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    for _ in range(steps):
        here = (row < rows)[:, None] & (column < width)[None, :]
        at = row[:, None] * width + column[None, :]
        x = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=here, other=0.0)
        if RECTIFY:
            x = tl.where(x < 0, 0.0, x)
        if CLIP:
            over, under = x >= high * scale, x <= low * scale
            inside = (over | under) == 0
            slope = tl.where(over, high, tl.where(under, low, 0.0))
        else:
            v = divide(x, power, near, reciprocal)
            rounded, clipped = round_clip(v, low - zero_point, high - zero_point)
            inside = rounded == clipped
            slope = tl.where(inside, clipped - v, clipped)
        passed = inside & (x > 0) if RECTIFY else inside
        tl.store(to_x_ptr + at, tl.where(passed, grad, 0.0).to(to_x_ptr.dtype.element_ty), mask=here)
        if LEARNED:
            wide = grad.to(tl.float32)
            to_scale += wide * slope
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
        tl.store(sums_scale_ptr + at_sum, sum_scale, mask=kept)
        if LEARNED_ZERO:
            tl.store(sums_zero_point_ptr + at_sum, sum_zero_point, mask=kept)
        if TOGETHER:
            tl.debug_barrier()
            if tl.atomic_add(counter_ptr, 1) == tl.num_programs(0) - 1:
                for start in range(0, channels, TILE_CHANNELS):
                    add_up(
                        sums_scale_ptr, sums_zero_point_ptr, scale_ptr, to_scale_ptr, to_zero_point_ptr, factor_ptr,
                        gradient_scale, start, outer, channels, inner, LEARNED_ZERO, HAS_FACTOR, MAGNITUDE,
                        TILE_CHANNELS, TILE_SUMS,
                    )  # fmt: skip
                tl.store(counter_ptr, 0)


@triton.jit
def add_sums(
    sums_scale_ptr, sums_zero_point_ptr, scale_ptr, to_scale_ptr, to_zero_point_ptr, factor_ptr,
    gradient_scale, outer, channels, inner,
    LEARNED_ZERO: tl.constexpr, HAS_FACTOR: tl.constexpr, MAGNITUDE: tl.constexpr,
    TILE_CHANNELS: tl.constexpr, TILE_SUMS: tl.constexpr,
):  # fmt: skip
    """Sums [outer, channels, inner] to gradients [channels]."""
    add_up(
        sums_scale_ptr, sums_zero_point_ptr, scale_ptr, to_scale_ptr, to_zero_point_ptr, factor_ptr,
        gradient_scale, tl.program_id(0) * TILE_CHANNELS, outer, channels, inner, LEARNED_ZERO, HAS_FACTOR, MAGNITUDE,
        TILE_CHANNELS, TILE_SUMS,
    )  # fmt: skip


@triton.jit
def add_up(
    sums_scale_ptr, sums_zero_point_ptr, scale_ptr, to_scale_ptr, to_zero_point_ptr, factor_ptr,
    gradient_scale, first, outer, channels, inner,
    LEARNED_ZERO: tl.constexpr, HAS_FACTOR: tl.constexpr, MAGNITUDE: tl.constexpr,
    TILE_CHANNELS: tl.constexpr, TILE_SUMS: tl.constexpr,
):  # fmt: skip
    """The gradients of some channels from their partial sums, always added in the same order."""
    channel = first + tl.arange(0, TILE_CHANNELS)
    to_scale = tl.zeros((TILE_SUMS, TILE_CHANNELS), tl.float32)
    to_zero_point = tl.zeros((TILE_SUMS, TILE_CHANNELS), tl.float32)
    for start in range(0, outer * inner, TILE_SUMS):
        k = start + tl.arange(0, TILE_SUMS)
        here = (k < outer * inner)[:, None] & (channel < channels)[None, :]
        at = ((k // inner)[:, None] * channels + channel[None, :]) * inner + (k % inner)[:, None]
        to_scale += tl.load(sums_scale_ptr + at, mask=here, other=0.0, cache_modifier=".cg")
        if LEARNED_ZERO:
            to_zero_point += tl.load(sums_zero_point_ptr + at, mask=here, other=0.0, cache_modifier=".cg")
    if HAS_FACTOR:
        gradient_scale *= tl.load(factor_ptr)
    tl.store(to_scale_ptr + channel, tl.sum(to_scale, 0) * gradient_scale, mask=channel < channels)
    if LEARNED_ZERO:
        scale = tl.load(scale_ptr + channel, mask=channel < channels, other=0.0)
        if MAGNITUDE:
            scale = tl.abs(scale)
        total = tl.sum(to_zero_point, 0) * -scale * gradient_scale
        tl.store(to_zero_point_ptr + channel, total, mask=channel < channels)
