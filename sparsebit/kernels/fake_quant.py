"""Snapping to an integer grid in one pass over memory: the torch operators ``sparsebit::snap`` and ``snap_backward``.

Both take the memory of a dense tensor as a matrix (``tiling.Matrix``) and scales and zero points as [channels], in
float32. They work under autograd and ``torch.compile``. The reference is ``numerics.snapping``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from sparsebit.kernels.launch import AVAILABLE, launch
from sparsebit.kernels.tiling import Matrix, as_matrix

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
    if not x.is_cuda or x.dtype not in _DTYPES or scale.dtype != torch.float32 or not AVAILABLE:
        return None
    factor, number = None, gradient_scale
    if isinstance(gradient_scale, Tensor):
        factor, number = gradient_scale.detach(), 1.0
        if factor.numel() != 1 or factor.device != x.device or factor.dtype != torch.float32:
            return None
    if (found := as_matrix(x, scale)) is None:
        return None
    matrix, order = found
    if zero_point.shape != scale.shape:
        zero_point = zero_point.expand_as(scale)
    if order is not None:
        scale, zero_point = scale.permute(order), zero_point.permute(order)
    arguments = (x, scale.contiguous(), zero_point.contiguous(), factor, float(low), float(high), number)
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        sizes = (matrix.rows, matrix.width, matrix.channels, matrix.by_column)
        return torch.ops.sparsebit.snap(*arguments, *sizes)  # type: ignore[no-any-return]
    # The operator would do the same, with several times the work on the host.
    if torch.is_grad_enabled() and (x.requires_grad or scale.requires_grad or zero_point.requires_grad):
        return _with_gradients(*arguments, matrix)
    return _forward(x, *arguments[1:3], float(low), float(high), matrix)


class _Snap(torch.autograd.Function):
    """Keeps ``x`` and the grid; everything else is computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, *settings: Any) -> Tensor:
        ctx.save_for_backward(x, scale, zero_point)
        ctx.settings = settings
        _factor, low, high, _gradient_scale, matrix = settings
        return _forward(x, scale, zero_point, low, high, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad
        x, scale, zero_point = ctx.saved_tensors
        factor, low, high, gradient_scale, matrix = ctx.settings
        learned = needed[1] or needed[2]
        found = _backward(
            grads[0], x, scale, zero_point, factor, low, high, gradient_scale, matrix, learned=learned
        )
        gradients = [g if wanted else None for g, wanted in zip(found, needed[:3], strict=True)]
        return *gradients, *[None] * len(ctx.settings)


_with_gradients = cast("Callable[..., Tensor]", _Snap.apply)


def _forward(x: Tensor, scale: Tensor, zero_point: Tensor, low: float, high: float, matrix: Matrix) -> Tensor:
    from sparsebit.kernels import fake_quant_triton as kernels

    y = torch.empty_like(x)
    rows, columns = matrix.tile
    programs = -(-matrix.rows // rows) * -(-matrix.width // columns)
    settings = (matrix.rows, matrix.width, matrix.channels, matrix.by_column, rows, columns)
    with _on_device_of(x):
        launch(kernels.snap_forward, programs, (x, y, scale, zero_point), (low, high), settings)
    return y


def _backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    factor: Tensor | None,
    low: float,
    high: float,
    gradient_scale: float,
    matrix: Matrix,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, scale and zero point; the last two are empty where nothing is learned."""
    from sparsebit.kernels import fake_quant_triton as kernels

    to_x = torch.empty_like(x)
    if grad.stride() != to_x.stride() or grad.dtype != x.dtype:
        grad = torch.empty_like(to_x).copy_(grad)
    rows, width, channels, by_column = matrix.rows, matrix.width, matrix.channels, matrix.by_column
    tile_rows, tile_columns = matrix.tile
    down, across = -(-rows // tile_rows), -(-width // tile_columns)
    # Without sums to keep, every tile is a program of its own.
    chunks, steps = matrix.chunks if learned else (down if by_column else across, 1)
    programs = chunks * (across if by_column else down)
    outer, inner = (chunks, 1) if by_column else (rows // channels, chunks)
    last = outer * inner == 1
    gradients = [torch.empty_like(scale) if learned else scale.new_empty(0) for _ in range(2)]
    sums = gradients if last or not learned else [scale.new_empty(channels * outer * inner) for _ in range(2)]
    pointer = scale if factor is None else factor
    with _on_device_of(x):
        launch(
            kernels.snap_backward,
            programs,
            (grad, x, to_x, scale, zero_point, *sums, pointer),
            (low, high, gradient_scale),
            (
                rows,
                width,
                channels,
                chunks,
                steps,
                learned,
                last,
                factor is not None,
                by_column,
                *matrix.tile,
            ),
        )
        if sums is not gradients:
            tile = 1 if channels == 1 else 16
            launch(
                kernels.add_sums,
                -(-channels // tile),
                (*sums, scale, *gradients, pointer),
                (gradient_scale,),
                (outer, channels, inner, factor is not None, tile, 1024 // tile),
            )
    return to_x, gradients[0], gradients[1]


def _on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def _run_forward(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    factor: Tensor | None,
    low: float,
    high: float,
    gradient_scale: float,
    *matrix: Any,
) -> Tensor:
    return _forward(x, scale, zero_point, low, high, Matrix(*matrix))


def _run_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    factor: Tensor | None,
    low: float,
    high: float,
    gradient_scale: float,
    rows: int,
    width: int,
    channels: int,
    by_column: bool,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    matrix = Matrix(rows, width, channels, by_column)
    return _backward(grad, x, scale, zero_point, factor, low, high, gradient_scale, matrix, learned)


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
