"""Snapping to an integer grid as one node for compilers: the torch operators ``sparsebit::snap`` and ``snap_backward``.

``torch.compile`` and AOT autograd see one node for a quantizer and one for all its gradients, on every device; composed
of torch's own operators it would be three times as many. Inductor then takes each apart (``snap_lowering``); where it
cannot, and with any other compiler, what runs are the kernels (``fake_quant``) or the operators of torch below.

A scale has the dtype that is computed in. It lies along one axis of ``x``, or with ``axis`` -1 broadcasts against it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsebit.kernels import snap_lowering
from sparsebit.kernels.fake_quant import SnapKernels, covers, snap_kernels
from sparsebit.kernels.snap_lowering import grid_shape
from sparsebit.kernels.tiling import as_matrix

_library = torch.library.Library("sparsebit", "FRAGMENT")
_GRID = "Tensor scale, Tensor zero_point, Tensor? factor, float low, float high, float gradient_scale"
# Inductor may choose the strides of what an operator reads, so that it can be made where it is read.
_TAGS = (torch.Tag.flexible_layout,)
_library.define(f"snap(Tensor x, {_GRID}, int axis, bool magnitude) -> Tensor", tags=_TAGS)
_library.define(
    f"snap_backward(Tensor grad, Tensor x, {_GRID}, int axis, bool magnitude, bool learned)"
    " -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)


def snap_operator(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: int,
    high: int,
    gradient_scale: float | Tensor = 1.0,
    axis: int = -1,
    magnitude: bool = False,
) -> Tensor:
    """``numerics.snapping.snap`` as one node; with ``magnitude`` the scale counts by its magnitude."""
    factor, number = None, gradient_scale
    if isinstance(gradient_scale, Tensor):
        factor, number = gradient_scale.detach(), 1.0
    settings = (factor, float(low), float(high), number, axis, magnitude)
    return torch.ops.sparsebit.snap(x, scale, zero_point, *settings)  # type: ignore[no-any-return]


def _kernels_for(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: float, high: float, axis: int, magnitude: bool
) -> SnapKernels | None:
    """The kernels for tensors like these; None where there are none, or scales would have to be put in order."""
    if not x.is_cuda or not covers(x, scale, zero_point):
        return None
    found = as_matrix(x, scale.view(grid_shape(x.dim(), scale.shape, axis)))
    if found is None or found[1] is not None:
        return None
    return snap_kernels(found[0], x.dtype, x.get_device(), low, high, magnitude)


def _run_forward(
    x: Tensor, scale: Tensor, zero_point: Tensor, factor: Tensor | None, low: float, high: float,
    gradient_scale: float, axis: int, magnitude: bool,
) -> Tensor:  # fmt: skip
    scale, zero_point = scale.contiguous(), zero_point.contiguous()
    kernels = _kernels_for(x, scale, zero_point, low, high, axis, magnitude)
    if kernels is not None:
        return kernels.snap(x, scale, zero_point)
    shape = grid_shape(x.dim(), scale.shape, axis)
    scale, zero_point = scale.view(shape), zero_point.view(shape)
    scale = scale.abs() if magnitude else scale
    steps = torch.div(x, scale).round_().clamp_(min=low - zero_point).clamp_(max=high - zero_point)
    return torch.empty_like(x).copy_(steps.mul_(scale))


def _run_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, factor: Tensor | None, low: float, high: float,
    gradient_scale: float, axis: int, magnitude: bool, learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scale, zero_point = scale.contiguous(), zero_point.contiguous()
    kernels = _kernels_for(x, scale, zero_point, low, high, axis, magnitude)
    if kernels is not None:
        backward = kernels.backward(learned, learned, factor is not None)
        to_x, *found = backward(grad, x, scale, zero_point, gradient_scale, factor)
        to_scale, to_zero_point = (scale.new_empty(0) if sums is None else sums for sums in found)
        return to_x, to_scale, to_zero_point
    shape = grid_shape(x.dim(), scale.shape, axis)
    s, z = scale.view(shape), zero_point.view(shape)
    size = s.abs() if magnitude else s
    v = torch.div(x, size)
    steps = v.round()
    clipped = steps.clamp(min=low - z).clamp_(max=high - z)
    inside = steps == clipped
    to_x = torch.empty_like(x).copy_(torch.where(inside, grad, 0))
    if not learned:
        return to_x, scale.new_empty(0), scale.new_empty(0)
    wide = grad.to(scale.dtype)
    number = gradient_scale if factor is None else gradient_scale * factor.view([1] * x.dim())
    to_scale = (wide * torch.where(inside, clipped - v, clipped)).sum_to_size(shape) * number
    if magnitude:
        to_scale = torch.where(s < 0, -to_scale, to_scale)
    to_zero_point = torch.where(inside, 0, wide).sum_to_size(shape) * -size * number
    return to_x, to_scale.view(scale.shape), to_zero_point.view(scale.shape)


def _fake_forward(x: Tensor, *_: Any) -> Tensor:
    # Inductor is loaded when it asks; at the latest for the graph that it compiles.
    snap_lowering.register_where_used()
    return torch.empty_like(x)


def _fake_backward(grad: Tensor, x: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = [
        torch.empty_like(scale, memory_format=torch.contiguous_format) if rest[-1] else scale.new_empty(0)
        for _ in range(2)
    ]
    return torch.empty_like(x), sums[0], sums[1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.settings = inputs[3:]  # the factor is a plain tensor that nothing learns


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad
    learned = needed[1] or needed[2]
    found = torch.ops.sparsebit.snap_backward(grad, *ctx.saved_tensors, *ctx.settings, learned)
    gradients = [g if wanted else None for g, wanted in zip(found, needed[:3], strict=True)]
    return *gradients, *[None] * len(ctx.settings)


_library.impl("snap", _run_forward, "CompositeExplicitAutograd")
_library.impl("snap_backward", _run_backward, "CompositeExplicitAutograd")
torch.library.register_fake("sparsebit::snap", _fake_forward, lib=_library)
torch.library.register_fake("sparsebit::snap_backward", _fake_backward, lib=_library)
torch.library.register_autograd("sparsebit::snap", _differentiate, setup_context=_keep, lib=_library)
