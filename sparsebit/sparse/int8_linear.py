"""A linear layer that multiplies a 2:4 weight in int8: its inputs are rounded vector by vector, when they come."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        flat = x.reshape(-1, self.in_features)
        lo, hi = flat.aminmax(dim=1)
        scale, zero = (one.unsqueeze(1) for one in choose_scale(lo, hi, CODE))
        sums = self._multiply(steps_of(flat, scale, zero, CODE).to(torch.int8))
        known = (lo.isfinite() & hi.isfinite()).unsqueeze(1)
        y = torch.empty(sums.shape, dtype=x.dtype, device=x.device)
        torch.mul(sums * self.scale, torch.where(known, scale, torch.nan), out=y)
        y = y if self.bias is None else y.add_(self.bias)
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
