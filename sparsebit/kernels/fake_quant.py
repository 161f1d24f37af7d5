"""Snapping to an integer grid in one pass over memory: the torch operators ``sparsebit::snap`` and ``snap_backward``.

Both take the memory of a dense tensor as a matrix (``tiling.Matrix``) and scales and zero points as [channels], in
float32. They work under autograd and ``torch.compile``. The reference is ``numerics.snapping``.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

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


@functools.cache
def is_available() -> bool:
    """Whether Triton, which the kernels are written in, is installed."""
    return importlib.util.find_spec("triton") is not None


def snap_fused(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, gradient_scale: float | Tensor = 1.0
) -> Tensor | None:
    """``numerics.snapping.snap`` for integer grids on CUDA; None where the kernels do not cover the case.

    Not covered: float64, memory with gaps, scales that no matrix describes, a ``gradient_scale`` of several numbers.
    """
    if not x.is_cuda or x.dtype not in _DTYPES or scale.dtype != torch.float32 or not is_available():
        return None
    factor = gradient_scale.detach() if isinstance(gradient_scale, Tensor) else None
    if factor is not None and (
        factor.numel() != 1 or factor.device != x.device or factor.dtype != torch.float32
    ):
        return None
    if (found := as_matrix(x, scale)) is None:
        return None
    matrix, order = found
    flat = [v.permute(order).reshape(-1) if v.numel() > 1 else v.reshape(-1) for v in (scale, zero_point)]
    if flat[1].numel() != matrix.channels:
        flat[1] = flat[1].expand(matrix.channels).contiguous()
    settings = (low, high, gradient_scale if factor is None else 1.0)
    sizes = (matrix.rows, matrix.width, matrix.channels, matrix.by_column)
    return torch.ops.sparsebit.snap(x, *flat, factor, *settings, *sizes)  # type: ignore[no-any-return]


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
    from sparsebit.kernels import fake_quant_triton as kernels

    shape, y = Matrix(*matrix), torch.empty_like(x)
    rows, columns = shape.tile
    programs = math.ceil(shape.rows / rows) * math.ceil(shape.width / columns)
    with torch.cuda.device_of(x):
        kernels.snap_forward[(programs,)](
            x, y, scale.contiguous(), zero_point.contiguous(), *matrix[:3], float(low), float(high),
            BY_COLUMN=shape.by_column, TILE_ROWS=rows, TILE_COLUMNS=columns,
        )  # fmt: skip
    return y


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
    from sparsebit.kernels import fake_quant_triton as kernels

    shape, to_x = Matrix(rows, width, channels, by_column), torch.empty_like(x)
    if grad.stride() != to_x.stride() or grad.dtype != x.dtype:
        grad = torch.empty_like(to_x).copy_(grad)
    tile_rows, tile_columns = shape.tile
    down, across = math.ceil(rows / tile_rows), math.ceil(width / tile_columns)
    # Without sums to keep, every tile is a program of its own.
    chunks, steps = shape.chunks if learned else (down if by_column else across, 1)
    programs = chunks * (across if by_column else down)
    outer, inner = (chunks, 1) if by_column else (rows // channels, chunks)
    last = outer * inner == 1
    count = channels * outer * inner if learned else 0
    sums = [torch.empty(count, dtype=torch.float32, device=x.device) for _ in range(2)]
    scale, gradient_scale, given = scale.contiguous(), float(gradient_scale), factor is not None
    pointer = scale if factor is None else factor
    with torch.cuda.device_of(x):  # Triton launches on the current device
        kernels.snap_backward[(programs,)](
            grad, x, to_x, scale, zero_point.contiguous(), *sums, pointer,
            rows, width, channels, float(low), float(high), gradient_scale, chunks, steps,
            LEARNED=learned, LAST=last, HAS_FACTOR=given,
            BY_COLUMN=by_column, TILE_ROWS=tile_rows, TILE_COLUMNS=tile_columns,
        )  # fmt: skip
        if learned and not last:
            found = [torch.empty(channels, dtype=torch.float32, device=x.device) for _ in range(2)]
            tile_channels = 1 if channels == 1 else 16
            kernels.add_sums[(math.ceil(channels / tile_channels),)](
                *sums, scale, *found, pointer, outer, channels, inner, gradient_scale,
                HAS_FACTOR=given, TILE_CHANNELS=tile_channels, TILE_SUMS=1024 // tile_channels,
            )  # fmt: skip
            sums = found
    return to_x, sums[0], sums[1]


def _fake_forward(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def _fake_backward(grad: Tensor, x: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    count = scale.numel() if rest[-1] else 0
    sums = [torch.empty(count, dtype=torch.float32, device=x.device) for _ in range(2)]
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
