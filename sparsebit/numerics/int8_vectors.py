"""Vectors as multiples of their scales in int8, and sums of products as numbers again."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebit.numerics.code_type import CodeType
from sparsebit.numerics.grid import choose_scale
from sparsebit.numerics.snapping import steps_of

CODE = CodeType("int", 8)


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
    y = (sums * rows.float() * vectors).to(dtype)
    return y if bias is None else y + bias.to(dtype)
