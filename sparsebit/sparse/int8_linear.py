"""A linear layer that multiplies a 2:4 weight in int8: its inputs are rounded vector by vector, when they come."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.kernels import launch
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.grid import choose_scale
from sparsebit.numerics.snapping import steps_of

CODE = CodeType("int", 8)
SIZES = 32  # outputs and inputs must be a multiple of it for torch's 2:4 kernel
VECTORS = 16  # and so must vectors, at least as many; others are added and removed again


class Int8Linear(nn.Module):
    """Replaces ``nn.Linear`` for inference.

    The weight has one scale for each output, and each vector of the input one for its largest magnitude. Sums of
    products are exact integers. On CUDA the weight is held as its nonzero values and their positions, and cuSPARSELt
    multiplies; on other devices it is dense: the reference, with the same sums. NaN and infinity give a vector of NaN.

    Example:
        >>> layer = Int8Linear(torch.tensor([[0.0, 2.0, 0.0, -1.0]]), bias=torch.ones(1))
        >>> layer(torch.tensor([[4.0, 0.5, 0.0, 1.0]]))
        tensor([[0.9921]])
    """

    codes: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        weight = weight.detach()
        self.out_features, self.in_features = weight.shape
        grid = Grid(*choose_scale(*weight.aminmax(dim=1), CODE), CODE, Layout(kind="channel", axes=(0,)))
        codes = grid.codes(weight)
        self.register_buffer("codes", torch._cslt_compress(codes) if codes.is_cuda else codes)
        self.register_buffer("scale", grid.scale)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias``, in the dtype of x."""
        steps, scale = on(x, round_vectors)(x.reshape(-1, self.in_features))
        y: Tensor = on(x, scale_sums)(self._multiply(steps), self.scale, scale, self.bias, x.dtype)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _multiply(self, x: Tensor) -> Tensor:
        """The sums of products of x [vectors, in], in int32."""
        if not x.is_cuda:
            return torch._int_mm(x, self.codes.T)
        padded = F.pad(x, (0, 0, 0, max(1, math.ceil(len(x) / VECTORS)) * VECTORS - len(x)))
        return torch._cslt_sparse_mm(self.codes, padded.T, out_dtype=torch.int32).T[: len(x)]

    def extra_repr(self) -> str:
        """Sizes, shown when the model is printed."""
        return f"{self.in_features}, {self.out_features}, 2:4 int8"


def round_vectors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors [vectors, in] as steps of their scales, and the scales [vectors, 1], NaN where one is not finite."""
    lo, hi = x.aminmax(dim=1, keepdim=True)
    scale, zero = choose_scale(lo, hi, CODE)
    steps = steps_of(x, scale, zero, CODE).to(torch.int8)
    return steps, torch.where(lo.isfinite() & hi.isfinite(), scale, torch.nan)


def scale_sums(
    sums: Tensor, rows: Tensor, vectors: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """Sums of products [vectors, out] as numbers of a dtype."""
    y = (sums * rows * vectors).to(dtype)
    return y if bias is None else y + bias


def on(x: Tensor, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as one or two kernels on CUDA, where it would take as many passes over memory as it has operators."""
    fused = x.is_cuda and launch.AVAILABLE and not torch.compiler.is_compiling()
    return _compiled(function) if fused else function


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)
