"""Snapping to a grid, with straight-through gradients, and gradients to a scale and zero point that learn.

With ``v = x / s`` and the codes clipped to [n, p] (both counted from the zero point z), the value is
``s * clip(round(v), n, p)``. Its gradients, straight through the rounding, are those of LSQ (Esser et al., arXiv
1902.08153, eq. 3) and LSQ+ (Bhalgat et al., arXiv 2004.09576, eq. 4 and 5):

    d/dx = 1 inside, 0 outside
    d/ds = round(v) - v inside, n or p outside
    d/dz = 0 inside, -s outside

Tensors come aligned (``layout.align``): scale and zero point broadcast against ``x``, have at least one dimension, and
the dtype that is computed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from sparsebit.kernels.fake_quant import snap_fused
from sparsebit.numerics.code_type import CodeType

USE_KERNELS = True  # fused kernels on CUDA, where they cover the case; False leaves everything to torch


def steps_of(x: Tensor, scale: Tensor, zero_point: Tensor, code: CodeType) -> Tensor:
    """``x`` as multiples of the scale that the type can hold, counted from zero, in a new tensor."""
    # Clamping round(x / scale) to [low - zero_point, high - zero_point] equals adding the zero point, clamping
    # and subtracting it again, with two passes over memory less. Both bounds in one call is a slower kernel.
    steps = code.round_(torch.div(x, scale))
    return code.nearest(steps.clamp_(min=code.low - zero_point).clamp_(max=code.high - zero_point))


def snap(
    x: Tensor, scale: Tensor, zero_point: Tensor, code: CodeType, gradient_scale: float | Tensor = 1.0
) -> Tensor:
    """``x`` on the grid, in its own dtype; gradients to scale and zero point are multiplied by ``gradient_scale``."""
    if USE_KERNELS and x.is_cuda and code.is_integer:
        fused = snap_fused(x, scale, zero_point, code.low, code.high, gradient_scale)
        if fused is not None:
            return fused
    return snap_plain(x, scale, zero_point, code, gradient_scale)


def snap_plain(
    x: Tensor, scale: Tensor, zero_point: Tensor, code: CodeType, gradient_scale: float | Tensor = 1.0
) -> Tensor:
    """``snap`` with torch's own operators, on any device: the reference of the kernels."""
    if torch.is_grad_enabled():
        learned = scale.requires_grad or zero_point.requires_grad
        if learned or x.requires_grad:
            return _with_gradients(x, scale, zero_point, code, gradient_scale, learned)
    return steps_of(x, scale, zero_point, code).mul_(scale).to(x.dtype)


class _Snap(torch.autograd.Function):
    """One function instead of a chain of operators: a third of the passes over memory.

    Keeps one byte per element, and where the grid learns also its slope.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        code: CodeType,
        gradient_scale: float | Tensor,
        learned: bool,
    ) -> Tensor:
        v = torch.div(x, scale)
        steps = code.round_(v.clone() if learned else v)
        clipped = steps.clamp(min=code.low - zero_point).clamp_(max=code.high - zero_point)
        # Compared in place in floating point and then cast: comparisons that write bool, and casts to uint8, are slow.
        inside = steps.eq_(clipped)
        values = code.nearest(clipped)
        if learned:
            ctx.save_for_backward(inside.to(torch.int8), torch.addcmul(values, v.neg_(), inside), scale)
        else:
            ctx.save_for_backward(inside.to(torch.int8))
        ctx.gradient_scale, ctx.zero_point_shape = gradient_scale, zero_point.shape
        return values.mul_(scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inside, *learned = ctx.saved_tensors
        (grad,) = grads
        to_x = inside.to(grad.dtype).mul_(grad) if ctx.needs_input_grad[0] else None
        to_scale = to_zero_point = None
        if learned:
            slope, scale = learned
            grad = grad.to(scale.dtype)
            if ctx.needs_input_grad[1]:
                to_scale = _sum_to(grad, slope, scale.shape).mul_(ctx.gradient_scale)
            if ctx.needs_input_grad[2]:
                total = _sum_to(grad, 1 - inside.to(grad.dtype), scale.shape)
                to_zero_point = (total * -scale * ctx.gradient_scale).reshape(ctx.zero_point_shape)
        return to_x, to_scale, to_zero_point, None, None, None


_with_gradients = cast("Callable[..., Tensor]", _Snap.apply)


def _sum_to(a: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """``(a * b).sum_to_size(shape)``, without the product in memory where one number is left."""
    if shape.numel() == 1:
        return torch.dot(a.reshape(-1), b.reshape(-1)).reshape(shape)
    return (a * b).sum_to_size(shape)
