"""Triton kernels for products of vectors that are rounded to int8. Import only where Triton is installed."""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from sparsebit.kernels.fake_quant_triton import divide, prepare_division, round_clip


@triton.jit
def round_vector(x_ptr, steps_ptr, scale_ptr, of_zeros, width, TILE: tl.constexpr):
    """One vector for each program: its scale is its largest magnitude / 127, and NaN if a number is not finite."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, TILE)
    largest = tl.zeros((TILE,), tl.float32)
    finite = tl.full((TILE,), True, tl.int1)
    for start in range(0, width, TILE):
        here = start + column < width
        x = tl.load(x_ptr + row * width + start + column, mask=here, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
        finite = finite & (tl.abs(x) < float("inf"))
    size = tl.div_rn(tl.max(largest, 0), 127.0)
    scale = tl.where(size > 0, tl.maximum(size, 1.1754943508222875e-38), of_zeros)
    known = tl.min(finite.to(tl.int32), 0) == 1
    tl.store(scale_ptr + row, tl.where(known, scale, float("nan")))
    power, near, reciprocal = prepare_division(scale)
    for start in range(0, width, TILE):
        here = start + column < width
        x = tl.load(x_ptr + row * width + start + column, mask=here, other=0.0).to(tl.float32)
        x = tl.where(known, x, 0.0)
        _, steps = round_clip(divide(x, power, near, reciprocal), -127.0, 127.0)
        tl.store(steps_ptr + row * width + start + column, steps.to(tl.int8), mask=here)


@triton.jit
def scale_sums(
    sums_ptr, rows_ptr, vectors_ptr, bias_ptr, y_ptr, width, HAS_BIAS: tl.constexpr, TILE: tl.constexpr
):
    """``y = sums * scale of the row * scale of the vector + bias``, one tile of a vector for each program."""
    vector = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    here = column < width
    sums = tl.load(sums_ptr + vector * width + column, mask=here, other=0).to(tl.float32)
    y = sums * tl.load(rows_ptr + column, mask=here, other=0.0) * tl.load(vectors_ptr + vector)
    y = y.to(y_ptr.dtype.element_ty)
    if HAS_BIAS:
        y = (y.to(tl.float32) + tl.load(bias_ptr + column, mask=here, other=0.0).to(tl.float32)).to(y.dtype)
    tl.store(y_ptr + vector * width + column, y, mask=here)
