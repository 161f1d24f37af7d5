"""Snapping to a grid, with straight-through gradients, and gradients for a learned scale and zero point.

With ``v = x / s`` and the codes clipped to [n, p] (both counted from the zero point z), the value is
``s * clip(round(v), n, p)``. Its gradients, straight through the rounding, are those of LSQ (Esser et al., arXiv
1902.08153, eq. 3) and LSQ+ (Bhalgat et al., arXiv 2004.09576, eq. 4 and 5):

    d/dx = 1 inside, 0 outside
    d/ds = round(v) - v inside, n or p outside
    d/dz = 0 inside, -s outside

Tensors come aligned (``layout.align``): scale and zero point broadcast against ``x``, have at least one dimension, and
the compute dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.kernels.fake_quant import (
    SnapKernels,
    covers,
    is_one_number,
    snap_fused,
    snap_kernels,
    snap_with,
)
from sparsebit.kernels.snap_operator import snap_operator
from sparsebit.kernels.tiling import DenseMatrix, find_matrix
from sparsebit.numerics.code_type import CodeType
from sparsebit.numerics.layout import Layout, align

# Fused kernels on CUDA, where they cover the case, and an operator for compilers; False leaves everything to torch.
USE_KERNELS = True

_PLAIN = (Tensor, nn.Parameter)  # a subclass of a user's may not have memory of its own


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype for computing with numbers of a dtype: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def snap_tensor(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    code: CodeType,
    layout: Layout,
    gradient_scale: float | Tensor = 1.0,
    *,
    order: Tensor | None = None,
    magnitude: bool = False,
) -> Tensor:
    """``snap`` with scale and zero point as a grid holds them, [C]; no object is created.

    With ``magnitude``, the magnitude of the scale is used, and its gradient has the scale's sign.
    """
    if order is None and kernels_run_on(x):
        kernels = kernels_for(x, scale, zero_point, code, layout, magnitude)
        if kernels is not None and is_one_number(gradient_scale, x):
            return snap_with(kernels, x, scale, zero_point, gradient_scale)
    if order is None and takes_operator(code, gradient_scale):
        axis = axis_of(x, scale, zero_point, layout)
        if axis is not None:
            bounds = code.low, code.high
            return snap_operator(x, scale, zero_point, *bounds, gradient_scale, axis, magnitude)
    view, scale, zero_point = align_grid(x, scale, zero_point, layout, order)
    if magnitude:
        scale = scale.abs()
    return snap(view, scale, zero_point, code, gradient_scale).reshape(x.shape)


def kernels_run_on(x: Tensor) -> bool:
    """Whether fused kernels can be launched for this tensor here; a compiler gets operators instead."""
    return not torch.compiler.is_compiling() and USE_KERNELS and x.is_cuda and type(x) in _PLAIN


def is_exporting() -> bool:
    """``torch.compiler.is_exporting``, which always answers yes to ``torch.compile`` in torch 2.11."""
    return bool(torch.compiler._is_exporting_flag)


def takes_operator(code: CodeType, gradient_scale: float | Tensor) -> bool:
    """Whether a compiler is given one operator for a quantizer, and not a composition of torch's own.

    A program that is exported is to run without this library.
    """
    compiling = torch.compiler.is_dynamo_compiling() and not is_exporting()
    if not compiling or not USE_KERNELS or not code.is_integer:
        return False
    return not isinstance(gradient_scale, Tensor) or gradient_scale.numel() == 1


def axis_of(x: Tensor, scale: Tensor, zero_point: Tensor, layout: Layout) -> int | None:
    """The axis of ``x`` that scales [C] lie along, -1 for a single one; None where they need ``align_grid``.

    A compiler's graph has a node for every view and one for its gradient, for every quantizer of a model.
    """
    wide = compute_dtype(x.dtype)
    if scale.shape != zero_point.shape or not scale.dtype == zero_point.dtype == wide:
        return None
    if not scale.device == zero_point.device == x.device or scale.dim() != 1:
        return None
    if scale.numel() == 1:
        return -1
    single = layout.kind == "channel" and len(layout.axes) == 1 and layout.groups == 1
    return layout.axes[0] % x.dim() if single else None


def kernels_for(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    code: CodeType,
    layout: Layout,
    magnitude: bool,
    rectify: bool = False,
) -> SnapKernels | None:
    """The kernels for tensors like these, for callers to keep and reuse; None if there are none.

    With ``rectify`` they snap ``relu(x)``.
    """
    if not code.is_integer or not covers(x, scale, zero_point):
        return None
    matrix = matrix_of(x.shape, x.stride(), layout, scale.numel())
    if matrix is None:
        return None
    bounds = float(code.low), float(code.high)
    return snap_kernels(matrix, x.dtype, x.get_device(), *bounds, magnitude, rectify)


def align_grid(
    x: Tensor, scale: Tensor, zero_point: Tensor, layout: Layout, order: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """A view of ``x``, and scale and zero point that broadcast against it and make the result the compute dtype.

    They have at least one dimension: a zero-dimensional tensor would rank below half precision in type promotion, and
    CUDA would multiply by its reciprocal instead of dividing.
    """
    wide = compute_dtype(x.dtype)
    scale, zero_point = scale.to(x.device, wide), zero_point.to(x.device, wide)
    if scale.numel() == 1:
        return x, scale.reshape(1), zero_point.reshape(1)
    if layout.kind == "tensor":
        raise SparsebitError(
            "several scales for a layout that has one",
            got=f"{scale.numel()} scales for a tensor of shape {tuple(x.shape)}",
            hint="say which elements share a scale: Layout(kind='channel', axes=(0,))",
        )
    view, (scale, zero_point) = align(x, layout, scale, zero_point, order=order)
    return view, scale, zero_point


@functools.lru_cache(maxsize=4096)
def matrix_of(shape: torch.Size, stride: tuple[int, ...], layout: Layout, count: int) -> DenseMatrix | None:
    """The matrix view of a tensor of this shape with the scales of the layout; None if there is none."""
    x = torch.empty_strided(shape, stride, device="meta")
    scale = torch.empty(count, device="meta")
    try:
        view, scale, _ = align_grid(x, scale, scale, layout)
    except (SparsebitError, RuntimeError):  # the caller raises the same error, with its own message
        return None
    found = find_matrix(view.shape, view.stride(), scale.shape)
    return found[0] if found is not None and found[1] is None else None


def steps_of(x: Tensor, scale: Tensor, zero_point: Tensor, code: CodeType) -> Tensor:
    """``x`` as multiples of the scale that the type can represent, relative to the zero point, in a new tensor."""
    # Clamping round(x / scale) to [low - zero_point, high - zero_point] equals adding the zero point, clamping
    # and subtracting it again, with two passes over memory less. Both bounds in one call is a slower kernel.
    steps = code.round_(torch.div(x, scale))
    return code.nearest(steps.clamp_(min=code.low - zero_point).clamp_(max=code.high - zero_point))


def snap(
    x: Tensor, scale: Tensor, zero_point: Tensor, code: CodeType, gradient_scale: float | Tensor = 1.0
) -> Tensor:
    """``x`` on the grid, in its own dtype; gradients to scale and zero point are multiplied by ``gradient_scale``."""
    if takes_operator(code, gradient_scale):
        zero_point = zero_point if zero_point.shape == scale.shape else zero_point.expand_as(scale)
        return snap_operator(x, scale, zero_point, code.low, code.high, gradient_scale)
    if torch.compiler.is_compiling():
        return snap_composed(x, scale, zero_point, code, gradient_scale)
    if kernels_run_on(x) and code.is_integer:
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


def snap_composed(
    x: Tensor, scale: Tensor, zero_point: Tensor, code: CodeType, gradient_scale: float | Tensor = 1.0
) -> Tensor:
    """``snap`` composed of operators with the right gradients, which a compiler can differentiate and fuse.

    ``a + (b - a).detach()`` is the number ``b`` with the gradient of ``a``.
    """
    low, high = code.low - zero_point, code.high - zero_point
    if scale.requires_grad:
        scale = scale.detach() + (scale - scale.detach()) * gradient_scale
    if zero_point.requires_grad:
        shift = (zero_point - zero_point.detach()) * gradient_scale
        low, high = low.detach() - shift, high.detach() - shift
    v = torch.div(x, scale)
    if code.is_integer:
        # One step more on both sides does not change what is inside, and keeps infinity out of the difference.
        v = torch.maximum(torch.minimum(v, high.detach() + 1), low.detach() - 1)
        v = v + (v.round() - v).detach()
    clipped = _clip(v, low, high)
    if not code.is_integer:
        clipped = clipped + (code.nearest(clipped.detach()) - clipped).detach()
    return (clipped * scale).to(x.dtype)


def _clip(v: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """``v`` between two bounds; on a bound, the gradient goes to the number only, and NaN stays."""
    return torch.where(v < low, low, torch.where(v > high, high, v))


class _Snap(torch.autograd.Function):
    """One autograd function instead of a chain of operators: a third of the passes over memory.

    Keeps one byte per element, and for a learned grid also its slope.
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
        steps = code.rounded(v) if learned else code.round_(v)
        clipped = steps.clamp(min=code.low - zero_point).clamp_(max=code.high - zero_point)
        # Compared in place in floating point and then cast: comparisons that write bool, and casts to uint8, are slow.
        inside = steps.eq_(clipped)
        values = code.nearest(clipped)
        if learned:
            most = torch.finfo(v.dtype).max
            v.clamp_(-most, most)  # infinity times 0 would be NaN
            ctx.save_for_backward(inside.to(torch.int8), torch.addcmul(values, v, inside, value=-1), scale)
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
    """``(a * b).sum_to_size(shape)``; without storing the product if the result is one number."""
    if shape.numel() == 1:
        return torch.dot(a.reshape(-1), b.reshape(-1)).reshape(shape)
    return (a * b).sum_to_size(shape)
