"""Vectors as multiples of their scales in int8, and sums of products as numbers again: one kernel each."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsebit.kernels.launch import launch, on_device_of

WIDTH = 2048  # numbers of a vector that a program takes at once


def round_fused(x: Tensor, of_zeros: float) -> tuple[Tensor, Tensor]:
    """Vectors [vectors, in] as steps in int8, and their scales [vectors, 1], NaN where a number is not finite.

    ``of_zeros`` is the scale of a vector of zeros.
    """
    from sparsebit.kernels import int8_vectors_triton as kernels

    x = x.contiguous()
    steps, scale = torch.empty_like(x, dtype=torch.int8), x.new_empty((len(x), 1), dtype=torch.float32)
    if x.numel():
        settings = x.shape[1], min(WIDTH, 2 ** math.ceil(math.log2(x.shape[1])))
        with on_device_of(x):
            launch(kernels.round_vector, len(x), (x, steps, scale), (of_zeros,), settings)
    return steps, scale


def scale_fused(
    sums: Tensor, rows: Tensor, vectors: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Sums of products [vectors, out], contiguous, times both scales, plus the bias, in a dtype."""
    from sparsebit.kernels import int8_vectors_triton as kernels

    y = torch.empty_like(sums, dtype=dtype)
    if y.numel():
        tensors = sums, rows, vectors, rows if bias is None else bias, y
        settings, across = (sums.shape[1], bias is not None, WIDTH), math.ceil(sums.shape[1] / WIDTH)
        with on_device_of(sums):
            launch(kernels.scale_sums, len(sums), tensors, (), settings, across=across)
    return y
