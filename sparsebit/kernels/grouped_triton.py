"""Triton kernels for many weights in one buffer, in chunks of one scale. Import only where Triton is installed."""

# Triton's own language: its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from sparsebit.kernels.fake_quant_triton import divide, prepare_division, round_clip


@triton.jit
def snap_chunks(
    x_ptr, y_ptr, scale_ptr, starts_ptr, lengths_ptr, owner_ptr, low_ptr, high_ptr,
    MAGNITUDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """``y = clip(round(x / scale)) * scale``, one chunk for each program."""
    program = tl.program_id(0)
    channel = tl.load(owner_ptr + program)
    scale = tl.load(scale_ptr + channel)
    if MAGNITUDE:
        scale = tl.abs(scale)
    here = tl.arange(0, CHUNK) < tl.load(lengths_ptr + program)
    at = tl.load(starts_ptr + program) + tl.arange(0, CHUNK)
    x = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
    power, near, reciprocal = prepare_division(scale)
    v = divide(x, power, near, reciprocal)
    _, clipped = round_clip(v, tl.load(low_ptr + channel), tl.load(high_ptr + channel))
    tl.store(y_ptr + at, (clipped * scale).to(y_ptr.dtype.element_ty), mask=here)


@triton.jit
def snap_chunks_backward(
    grad_ptr, x_ptr, to_x_ptr, sums_ptr, scale_ptr, starts_ptr, lengths_ptr, owner_ptr, low_ptr, high_ptr,
    LEARNED: tl.constexpr, MAGNITUDE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of ``x``, and of each chunk the sum of those of its scale."""
    program = tl.program_id(0)
    channel = tl.load(owner_ptr + program)
    scale = tl.load(scale_ptr + channel)
    if MAGNITUDE:
        scale = tl.abs(scale)
    here = tl.arange(0, CHUNK) < tl.load(lengths_ptr + program)
    at = tl.load(starts_ptr + program) + tl.arange(0, CHUNK)
    x = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + at, mask=here, other=0.0)
    power, near, reciprocal = prepare_division(scale)
    v = divide(x, power, near, reciprocal)
    rounded, clipped = round_clip(v, tl.load(low_ptr + channel), tl.load(high_ptr + channel))
    inside = rounded == clipped
    tl.store(to_x_ptr + at, tl.where(inside, grad, 0.0).to(to_x_ptr.dtype.element_ty), mask=here)
    if LEARNED:
        slope = tl.where(inside, clipped - v, clipped)
        tl.store(sums_ptr + program, tl.sum(grad.to(tl.float32) * slope, 0))


@triton.jit
def add_chunk_sums(
    sums_ptr, scale_ptr, to_scale_ptr, first_ptr, counts_ptr, factor_ptr,
    MAGNITUDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient of each scale from the sums of its chunks, always in the same order."""
    channel = tl.program_id(0)
    first, count = tl.load(first_ptr + channel), tl.load(counts_ptr + channel)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, count, TILE):
        k = start + tl.arange(0, TILE)
        total += tl.load(sums_ptr + first + k, mask=k < count, other=0.0)
    gradient = tl.sum(total, 0) * tl.load(factor_ptr + channel)
    if MAGNITUDE:
        gradient = tl.where(tl.load(scale_ptr + channel) < 0, -gradient, gradient)
    tl.store(to_scale_ptr + channel, gradient)
