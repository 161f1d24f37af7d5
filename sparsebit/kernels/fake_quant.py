"""Snapping to an integer grid in one pass over memory: the torch operators ``sparsebit::snap`` and ``snap_backward``.

Both take the memory of a dense tensor as a matrix (``tiling.DenseMatrix``) and scales and zero points as [channels], in
float32. They work under autograd and ``torch.compile``. The reference is ``numerics.snapping``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from sparsebit.kernels.launch import AVAILABLE, launch, on_device_of
from sparsebit.kernels.tiling import DenseMatrix, as_matrix

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_library = torch.library.Library("sparsebit", "FRAGMENT")
_MATRIX = "int rows, int width, int channels, bool by_column"
_library.define(
    "snap(Tensor x, Tensor scale, Tensor zero_point, Tensor? factor, float low, float high,"
    f" float gradient_scale, {_MATRIX}) -> Tensor",
    tags=(torch.Tag.needs_exact_strides,),
)
_library.define(
    "snap_backward(Tensor grad, Tensor x, Tensor scale, Tensor zero_point, Tensor? factor, float low,"
    f" float high, float gradient_scale, {_MATRIX}, bool learned) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.needs_exact_strides,),
)


def snap_fused(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, gradient_scale: float | Tensor = 1.0
) -> Tensor | None:
    """``numerics.snapping.snap`` for integer grids on CUDA; None where the kernels do not cover the case.

    Not covered: float64, memory with gaps, scales that no matrix describes, a ``gradient_scale`` of several numbers.
    """
    if not x.is_cuda or (found := as_matrix(x, scale)) is None:
        return None
    matrix, order = found
    if zero_point.shape != scale.shape:
        zero_point = zero_point.expand_as(scale)
    if order is not None:
        scale, zero_point = scale.permute(order), zero_point.permute(order)
    return snap_matrix(x, scale.contiguous(), zero_point.contiguous(), low, high, matrix, gradient_scale)


def snap_matrix(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: int,
    high: int,
    matrix: DenseMatrix,
    gradient_scale: float | Tensor = 1.0,
    magnitude: bool = False,
) -> Tensor | None:
    """``snap_fused`` where it is known how ``x`` lies in memory and scales are in that order; None if not covered.

    With ``magnitude`` a scale counts by its magnitude. The torch operator, which is for compilers, does not do that.
    """
    if x.dtype not in _DTYPES or scale.dtype != torch.float32 or not AVAILABLE:
        return None
    if zero_point.numel() != scale.numel() or zero_point.dtype != torch.float32 or not scale.is_cuda:
        return None
    factor, number = None, gradient_scale
    if isinstance(gradient_scale, Tensor):
        factor, number = gradient_scale.detach(), 1.0
        if factor.numel() != 1 or factor.device != x.device or factor.dtype != torch.float32:
            return None
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        sizes = (matrix.rows, matrix.width, matrix.channels, matrix.by_column)
        settings = (factor, float(low), float(high), number)
        return torch.ops.sparsebit.snap(x, scale, zero_point, *settings, *sizes)  # type: ignore[no-any-return]
    # The operator would do the same, with several times the work on the host.
    if torch.is_grad_enabled() and (x.requires_grad or scale.requires_grad or zero_point.requires_grad):
        return _with_gradients(x, scale, zero_point, matrix, low, high, number, factor, magnitude)
    return _forward(x, scale, zero_point, matrix, low, high, magnitude)


class _Snap(torch.autograd.Function):
    """Keeps ``x`` and the grid; everything else is computed again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, matrix: DenseMatrix, low: float, high: float,
        number: float, factor: Tensor | None, magnitude: bool,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, scale, zero_point)
        ctx.settings = matrix, low, high, number, factor, magnitude
        return _forward(x, scale, zero_point, matrix, low, high, magnitude)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for gradients of gradients, which there are none of
            return _differentiate_once(ctx, *grads)
        return _gradients(ctx, *grads)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, scale, zero_point = ctx.saved_tensors
    matrix, low, high, number, factor, magnitude = ctx.settings
    _, learned, learned_zero, *_ = ctx.needs_input_grad
    to_x, to_scale, to_zero_point = _backward(
        grad, x, scale, zero_point, matrix, low, high, number, factor, magnitude, learned, learned_zero
    )
    return to_x, to_scale, to_zero_point, None, None, None, None, None, None


_differentiate_once = once_differentiable(_gradients)
_with_gradients = cast("Callable[..., Tensor]", _Snap.apply)


def _forward(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    matrix: DenseMatrix,
    low: float,
    high: float,
    magnitude: bool,
) -> Tensor:
    from sparsebit.kernels import fake_quant_triton as kernels

    y = torch.empty_like(x)
    programs, settings = matrix.forward_launch
    with on_device_of(x):
        launch(
            kernels.snap_forward,
            programs,
            (x, y, scale, zero_point),
            (float(low), float(high)),
            (*settings[:3], magnitude, *settings[3:]),
        )
    return y


def _backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, matrix: DenseMatrix, low: float, high: float,
    gradient_scale: float, factor: Tensor | None, magnitude: bool, learned: bool, learned_zero: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of x, scale and zero point; the last two are None where neither is learned."""
    from sparsebit.kernels import fake_quant_triton as kernels

    to_x = torch.empty_like(x)
    if grad.stride() != to_x.stride() or grad.dtype != x.dtype:
        grad = torch.empty_like(to_x).copy_(grad)
    sums_needed = learned or learned_zero
    programs, (outer, inner, chunks, steps) = matrix.backward_launch(sums_needed)
    last, count, has_factor = outer * inner == 1, outer * inner * matrix.channels, factor is not None
    to_scale = to_zero_point = None
    sums: tuple[Tensor, ...] = (scale, scale)  # not written
    if sums_needed:
        to_scale = torch.empty_like(scale)
        to_zero_point = torch.empty_like(scale) if learned_zero else None
        made = [to_scale, to_zero_point] if last else [scale.new_empty(count), None]
        if learned_zero and not last:
            made[1] = scale.new_empty(count)
        sums = tuple([scale if sum_ is None else sum_ for sum_ in made])
    pointer = scale if factor is None else factor
    numbers = (float(low), float(high), gradient_scale)
    flags = (sums_needed, learned_zero, last, has_factor, magnitude, matrix.by_column)
    with on_device_of(x):
        launch(
            kernels.snap_backward,
            programs,
            (grad, x, to_x, scale, zero_point, *sums, pointer),
            numbers,
            (matrix.rows, matrix.width, matrix.channels, chunks, steps, *flags, *matrix.tile),
        )
        if to_scale is not None and not last:
            tile = 1 if matrix.channels == 1 else 16
            ends = (to_scale, scale if to_zero_point is None else to_zero_point)
            launch(
                kernels.add_sums,
                -(-matrix.channels // tile),
                (*sums, scale, *ends, pointer),
                (gradient_scale,),
                (outer, matrix.channels, inner, learned_zero, has_factor, magnitude, tile, 1024 // tile),
            )
    return to_x, to_scale, to_zero_point


def _run_forward(
    x: Tensor, scale: Tensor, zero_point: Tensor, factor: Tensor | None, low: float, high: float,
    gradient_scale: float, *matrix: Any,
) -> Tensor:  # fmt: skip
    return _forward(x, scale, zero_point, DenseMatrix(*matrix), low, high, magnitude=False)


def _run_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, factor: Tensor | None, low: float, high: float,
    gradient_scale: float, rows: int, width: int, channels: int, by_column: bool, learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    matrix = DenseMatrix(rows, width, channels, by_column)
    settings = (matrix, low, high, gradient_scale, factor, False, learned, learned)
    to_x, *found = _backward(grad, x, scale, zero_point, *settings)
    to_scale, to_zero_point = (scale.new_empty(0) if sums is None else sums for sums in found)
    return to_x, to_scale, to_zero_point


def _fake_forward(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _fake_backward(grad: Tensor, x: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = [torch.empty_like(scale) if rest[-1] else scale.new_empty(0) for _ in range(2)]
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


_library.impl("snap", _run_forward, "CUDA")
_library.impl("snap_backward", _run_backward, "CUDA")
torch.library.register_fake("sparsebit::snap", _fake_forward, lib=_library)
torch.library.register_fake("sparsebit::snap_backward", _fake_backward, lib=_library)
torch.library.register_autograd("sparsebit::snap", _differentiate, setup_context=_keep, lib=_library)
