"""Snapping to an integer grid in one pass over memory, forward and backward, by kernels on CUDA.

They take the memory of a dense tensor as a matrix (``tiling.DenseMatrix``) and scales and zero points as [channels], in
float32. The reference is ``numerics.snapping``; what compilers are given is ``snap_operator``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsebit.kernels.counters import take_counters
from sparsebit.kernels.launch import AVAILABLE, PreparedLaunch
from sparsebit.kernels.tiling import DenseMatrix, as_matrix

ADDED_AT_ONCE = 1024  # sums that a program adds up at a time
# How often the program that ends last adds up so many, at most; a separate kernel does it for more.
MOST_TOGETHER = 8
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def snap_fused(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, gradient_scale: float | Tensor = 1.0
) -> Tensor | None:
    """``numerics.snapping.snap`` for integer grids on CUDA; None if the kernels do not support the case.

    Not supported: float64, memory with gaps, scales not along a matrix, a ``gradient_scale`` of several numbers.
    """
    if not x.is_cuda or (found := as_matrix(x, scale)) is None:
        return None
    matrix, order = found
    if zero_point.shape != scale.shape:
        zero_point = zero_point.expand_as(scale)
    if order is not None:
        scale, zero_point = scale.permute(order), zero_point.permute(order)
    scale, zero_point = scale.contiguous(), zero_point.contiguous()
    if not covers(x, scale, zero_point) or not is_one_number(gradient_scale, x):
        return None
    kernels = snap_kernels(matrix, x.dtype, x.get_device(), float(low), float(high), False)
    return snap_with(kernels, x, scale, zero_point, gradient_scale)


def clip_fused(
    x: Tensor, alpha: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, two_sided: bool
) -> Tensor | None:
    """Clip to [0, ``alpha``], or [-``alpha``, ``alpha``], and snap to a grid with these ends; None for other cases.

    Gradients are those of the clip. ``low`` and ``high`` are the ends of the grid in steps; all tensors but ``x`` have
    one element.
    """
    if not x.is_cuda or not covers(x, scale, zero_point) or (found := as_matrix(x, scale)) is None:
        return None
    kernels = snap_kernels(found[0], x.dtype, x.get_device(), float(low), float(high), False)
    return clip_with(kernels, x, alpha, scale, zero_point, two_sided)


def covers(x: Tensor, scale: Tensor, zero_point: Tensor) -> bool:
    """Whether the kernels support these dtypes, and there is a zero point for each scale."""
    if x.dtype not in _DTYPES or scale.dtype != torch.float32 or not AVAILABLE:
        return False
    same = zero_point.numel() == scale.numel() and zero_point.dtype == torch.float32
    return same and scale.get_device() == x.get_device() == zero_point.get_device()


def is_one_number(gradient_scale: float | Tensor, x: Tensor) -> bool:
    """Whether the kernels support this gradient factor: a number, or a float32 scalar on the device of ``x``."""
    if not isinstance(gradient_scale, Tensor):
        return True
    return (
        gradient_scale.numel() == 1
        and gradient_scale.device == x.device
        and gradient_scale.dtype == torch.float32
    )


class SnapKernels:
    """The kernels for tensors of one dtype in one order of memory, with all arguments that stay the same.

    With ``rectify`` they snap ``relu(x)``. Not for ``torch.compile``: a prepared launch is an address.
    """

    def __init__(
        self,
        matrix: DenseMatrix,
        device: int,
        low: float,
        high: float,
        magnitude: bool,
        rectify: bool = False,
    ) -> None:
        from sparsebit.kernels import fake_quant_triton as kernels

        programs, settings = matrix.forward_launch
        self.matrix, self.device, self.bounds = matrix, device, (low, high)
        self.magnitude, self.rectify = magnitude, rectify
        settings = (*settings[:3], magnitude, rectify, *settings[3:])
        self.forward = PreparedLaunch(kernels.snap_forward, programs, settings, device)
        self._backward: dict[tuple[Any, ...], SnapBackward] = {}

    def snap(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        """``x`` on its grid, without gradients."""
        y = torch.empty_like(x)
        self.forward((x, y, scale, zero_point), self.bounds)
        return y

    def backward(
        self, learned: bool, learned_zero: bool, has_factor: bool, clip: tuple[float, float] | None = None
    ) -> SnapBackward:
        """The kernels of the gradients that are needed; with ``clip``, those of a clip to so many times the scale."""
        key = (learned, learned_zero, has_factor, clip)
        found = self._backward.get(key)
        if found is None:
            found = self._backward[key] = SnapBackward(self, *key)
        return found


class SnapBackward:
    """Gradients of x, scale and zero point; the last two are None if neither is learned."""

    def __init__(
        self,
        snap: SnapKernels,
        learned: bool,
        learned_zero: bool,
        has_factor: bool,
        clip: tuple[float, float] | None,
    ) -> None:
        from sparsebit.kernels import fake_quant_triton as kernels

        matrix, self.bounds = snap.matrix, snap.bounds if clip is None else clip
        self.sums_needed, self.learned_zero = learned or learned_zero, learned_zero
        programs, (outer, inner, chunks, steps) = matrix.backward_launch(self.sums_needed)
        self.last, self.count = outer * inner == 1, outer * inner * matrix.channels
        tile = 1 if matrix.channels == 1 else 16
        tiles = math.ceil(matrix.channels / tile) * math.ceil(outer * inner * tile / ADDED_AT_ONCE)
        self.together = self.sums_needed and not self.last and tiles <= MOST_TOGETHER
        ends = (has_factor, snap.magnitude)
        flags = (
            self.sums_needed,
            learned_zero,
            self.last,
            self.together,
            *ends,
            snap.rectify,
            clip is not None,
        )
        sizes = (matrix.rows, matrix.width, matrix.channels, chunks, steps, outer, inner)
        tiles_of_sums = (tile, ADDED_AT_ONCE // tile)
        settings = (*sizes, *flags, matrix.by_column, *matrix.tile, *tiles_of_sums)
        self._start = PreparedLaunch(kernels.snap_backward, programs, settings, snap.device)
        adding = (outer, matrix.channels, inner, learned_zero, *ends, *tiles_of_sums)
        self._add = PreparedLaunch(kernels.add_sums, math.ceil(matrix.channels / tile), adding, snap.device)

    def __call__(
        self, grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, number: float, factor: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Compute them, for the gradient of the result."""
        to_x = torch.empty_like(x)
        if grad.stride() != to_x.stride() or grad.dtype != x.dtype:
            grad = torch.empty_like(to_x).copy_(grad)
        numbers = (*self.bounds, number)
        # A kernel does not look at what it does not need, so any tensor may stand there.
        unused = scale
        pointer = unused if factor is None else factor
        if not self.sums_needed:
            self._start((grad, x, to_x, scale, zero_point, *[unused] * 4, pointer, unused), numbers)
            return to_x, None, None
        to_scale = torch.empty_like(scale)
        to_zero_point = torch.empty_like(scale) if self.learned_zero else None
        ends = sums = (to_scale, unused if to_zero_point is None else to_zero_point)
        if not self.last:
            own = scale.new_empty(self.count)
            sums = (own, scale.new_empty(self.count) if self.learned_zero else unused)
        counter = take_counters(scale.device, 1) if self.together else unused
        self._start((grad, x, to_x, scale, zero_point, *sums, *ends, pointer, counter), numbers)
        if not self.last and not self.together:
            self._add((*sums, scale, *ends, pointer), (number,))
        return to_x, to_scale, to_zero_point


@functools.lru_cache(maxsize=4096)
def snap_kernels(
    matrix: DenseMatrix,
    dtype: torch.dtype,
    device: int,
    low: float,
    high: float,
    magnitude: bool,
    rectify: bool = False,
) -> SnapKernels:
    """The kernels for tensors of this dtype in this memory order."""
    return SnapKernels(matrix, device, low, high, magnitude, rectify)


def snap_with(
    kernels: SnapKernels, x: Tensor, scale: Tensor, zero_point: Tensor, gradient_scale: float | Tensor
) -> Tensor:
    """Snap with prepared kernels that fit these tensors, with gradients if needed."""
    if torch.is_grad_enabled() and (x.requires_grad or scale.requires_grad or zero_point.requires_grad):
        # Without functorch's transforms ``Function.apply`` only looks at each argument once more.
        transformed = torch._C._are_functorch_transforms_active()
        apply = cast("Callable[..., Tensor]", _Snap.apply if transformed else _apply)
        factor = gradient_scale.detach() if isinstance(gradient_scale, Tensor) else None
        number = 1.0 if isinstance(gradient_scale, Tensor) else gradient_scale
        backward = kernels.backward(scale.requires_grad, zero_point.requires_grad, factor is not None)
        return apply(x, scale, zero_point, (kernels, backward, number, factor))
    return kernels.snap(x, scale, zero_point)


class _Snap(torch.autograd.Function):
    """Keeps ``x`` and the grid; everything else is computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        settings: tuple[SnapKernels, SnapBackward, float, Tensor | None],
    ) -> Tensor:
        ctx.save_for_backward(x, scale, zero_point)
        ctx.settings, ctx.stride = settings, x.stride()
        return settings[0].snap(x, scale, zero_point)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for second derivatives, which are an error
            return _differentiate_once(ctx, *grads)
        return _gradients(ctx, *grads)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, scale, zero_point = ctx.saved_tensors
    _, backward, number, factor = ctx.settings
    return *backward(grad, _with_stride(x, ctx.stride), scale, zero_point, number, factor), None


_differentiate_once = once_differentiable(_gradients)
_base: Any = super(torch.autograd.Function, _Snap)
_apply: Callable[..., Any] = _base.apply


def _with_stride(x: Tensor, stride: tuple[int, ...]) -> Tensor:
    """What was kept, in its memory format: hooks on saved tensors may return another one (``save_on_cpu``)."""
    if x.stride() == stride:
        return x
    return torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device).copy_(x)


def clip_with(
    kernels: SnapKernels, x: Tensor, alpha: Tensor, scale: Tensor, zero_point: Tensor, two_sided: bool
) -> Tensor:
    """``clip_fused`` with prepared kernels."""
    apply = cast("Callable[..., Tensor]", _Clip.apply)
    return apply(x, alpha, scale, zero_point, kernels, (-1.0 if two_sided else 0.0, 1.0))


class _Clip(torch.autograd.Function):
    """Keeps ``x`` and alpha, whose multiples are the ends."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        alpha: Tensor,
        scale: Tensor,
        zero_point: Tensor,
        kernels: SnapKernels,
        ends: tuple[float, float],
    ) -> Tensor:
        ctx.save_for_backward(x, alpha)
        ctx.kernels, ctx.ends, ctx.stride = kernels, ends, x.stride()
        return kernels.snap(x, scale, zero_point)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, alpha = ctx.saved_tensors
        backward = ctx.kernels.backward(ctx.needs_input_grad[1], False, False, ctx.ends)
        # In place of a zero point, which a clip has none of.
        to_x, to_alpha, _ = backward(grads[0], _with_stride(x, ctx.stride), alpha, alpha, 1.0, None)
        return to_x, to_alpha, None, None, None, None
