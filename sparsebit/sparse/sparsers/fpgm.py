"""Geometric median: the filter closest to all others can be replaced by them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser

_ELEMENTS = 1 << 24  # of one slab of distances


def distance_to_others(weight: Tensor) -> Tensor:
    """Σ_v ‖w_u − w_v‖ of each row [R, E], a slab of rows at a time."""
    step = max(1, _ELEMENTS // max(1, len(weight)))
    # the exact way: the one by matrix product loses equal rows, whose distance must be 0
    slabs = [
        torch.cdist(part, weight, compute_mode="donot_use_mm_for_euclid_dist").sum(1)
        for part in weight.split(step)
    ]
    return torch.cat(slabs)


@register_sparser("fpgm")
@dataclass(frozen=True)
class FPGM(Sparser):
    """He et al. (2019), "Filter Pruning via Geometric Median", equation 6: redundant filters go, not small ones."""

    def score(self, rows: Rows) -> Tensor:
        """The sum of distances to all other rows."""
        return distance_to_others(rows.weight)
