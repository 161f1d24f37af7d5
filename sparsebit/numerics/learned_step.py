"""Snapping to a grid whose scale and zero point learn.

With ``v = x / s`` and the codes clipped to [n, p] (both counted from the zero point z), the value is
``s * clip(round(v), n, p)``. Its gradients, straight through the rounding, are those of LSQ (Esser et al., arXiv
1902.08153, eq. 3) and LSQ+ (Bhalgat et al., arXiv 2004.09576, eq. 4 and 5):

    d/dx = 1 inside, 0 outside
    d/ds = round(v) - v inside, n or p outside
    d/dz = 0 inside, -s outside
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from sparsebit.numerics.grid import QParams
from sparsebit.numerics.layout import Layout, align


def learned_fake_quantize(
    x: Tensor, qparams: QParams, rows: Layout, gradient_scale: float | Tensor
) -> Tensor:
    """``fake_quantize`` whose gradients to scale and zero point [C] are multiplied by ``gradient_scale``.

    Example:
        >>> scale = torch.ones(1, requires_grad=True)
        >>> y = learned_fake_quantize(torch.tensor([0.4, 9.0]), QParams(scale, torch.zeros(1), -2, 1), Layout(), 1.0)
        >>> y.sum().backward()
        >>> y.detach(), scale.grad
        (tensor([0., 1.]), tensor([0.6000]))
    """
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    view, (scale, zero_point) = align(x, rows, qparams.scale.to(wide), qparams.zero_point.to(wide))
    apply = cast("Callable[..., Tensor]", _LearnedStep.apply)
    snapped = apply(view.to(wide), scale, zero_point, qparams.qmin, qparams.qmax, gradient_scale)
    return snapped.reshape(x.shape).to(x.dtype)


class _LearnedStep(torch.autograd.Function):
    """One function instead of a chain of operators: a third of the passes over memory."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        qmin: int,
        qmax: int,
        gradient_scale: float | Tensor,
    ) -> Tensor:
        v = torch.div(x, scale)
        steps = v.round()
        clipped = steps.clamp(min=qmin - zero_point).clamp_(max=qmax - zero_point)
        inside = steps.eq_(clipped)  # as 1.0 and 0.0: a comparison that writes bool is slow
        ctx.save_for_backward(torch.addcmul(clipped, v.neg_(), inside), inside.to(torch.bool), scale)
        ctx.gradient_scale, ctx.zero_point_shape = gradient_scale, zero_point.shape
        return clipped.mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope, inside, scale = ctx.saved_tensors
        (grad,) = grads
        to_x = inside.view(torch.uint8).to(grad.dtype).mul_(grad) if ctx.needs_input_grad[0] else None
        to_scale = to_zero_point = None
        if ctx.needs_input_grad[1]:
            to_scale = _sum_to(grad, slope, scale.shape).mul_(ctx.gradient_scale)
        if ctx.needs_input_grad[2]:
            outside = 1 - inside.view(torch.uint8).to(grad.dtype)
            total = _sum_to(grad, outside, scale.shape)
            to_zero_point = (total * -scale * ctx.gradient_scale).reshape(ctx.zero_point_shape)
        return to_x, to_scale, to_zero_point, None, None, None


def _sum_to(a: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """``(a * b).sum_to_size(shape)``, without the product in memory where one number is left."""
    if shape.numel() == 1:
        return torch.dot(a.reshape(-1), b.reshape(-1)).reshape(shape)
    return (a * b).sum_to_size(shape)
