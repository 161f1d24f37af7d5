"""Rank and linear correlation."""

from __future__ import annotations

import torch
from torch import Tensor


def pearson(x: Tensor, y: Tensor) -> float:
    """Linear correlation of two vectors [N], in float64."""
    x, y = x.double() - x.double().mean(), y.double() - y.double().mean()
    return float((x @ y) / (x.norm() * y.norm()))


def spearman(x: Tensor, y: Tensor) -> float:
    """Correlation of the ranks of two vectors [N]; equal values share the mean of their ranks."""
    return pearson(average_ranks(x), average_ranks(y))


def average_ranks(x: Tensor) -> Tensor:
    """Ranks from 1, float64 [N].

    Example:
        >>> average_ranks(torch.tensor([3.0, 1.0, 3.0]))
        tensor([2.5000, 1.0000, 2.5000], dtype=torch.float64)
    """
    _, group, sizes = torch.unique(x, return_inverse=True, return_counts=True)
    shared: Tensor = sizes.cumsum(0).double() - (sizes.double() - 1) / 2
    return shared[group]
