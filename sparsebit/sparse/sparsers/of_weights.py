"""Criteria that use only the weights."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.config.pruning.criteria import L0NormSettings, RandomSettings, SlimmingSettings
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser

_ELEMENTS = 1 << 24  # of one slab of distances


@register_sparser("l0norm")
@dataclass(frozen=True)
class L0Norm(L0NormSettings, Sparser):
    """Counts the weights above ``epsilon``; for networks trained to have zeros, where other magnitudes mean little."""

    def score(self, rows: Rows) -> Tensor:
        """The number of weights that count."""
        return (rows.weight.abs() > self.epsilon).sum(1).to(rows.weight.dtype)


@register_sparser("l1norm")
@dataclass(frozen=True)
class L1Norm(Sparser):
    """Sum of magnitudes (Li et al., 2017, "Pruning Filters for Efficient ConvNets")."""

    def score(self, rows: Rows) -> Tensor:
        """The sum of magnitudes."""
        return rows.weight.abs().sum(1)


@register_sparser("l2norm")
@dataclass(frozen=True)
class L2Norm(Sparser):
    """Euclidean length; gives single large weights more influence than the sum of magnitudes."""

    def score(self, rows: Rows) -> Tensor:
        """The length."""
        return rows.weight.square().sum(1).sqrt()


def lamp_scores(squares: Tensor) -> Tensor:
    """s_u = a_u / Σ a_v over all v with a_v ≥ a_u, in the order of a stable sort; ``squares`` is [R].

    Example:
        >>> lamp_scores(torch.tensor([1.0, 3.0]))
        tensor([0.2500, 1.0000])
    """
    ordered, order = torch.sort(squares, stable=True)
    at_least = ordered.flip(0).cumsum(0).flip(0).clamp(min=torch.finfo(squares.dtype).tiny)
    return torch.empty_like(squares).scatter_(0, order, ordered / at_least)


@register_sparser("lamp")
@dataclass(frozen=True)
class LAMP(Sparser):
    """Layer-adaptive magnitude (Lee et al., 2021, eq. 1): a row's share of the energy of all rows at least as large.

    Inside a layer, the order is that of the length; it is meant for a global choice.
    """

    comparable = True

    def score(self, rows: Rows) -> Tensor:
        """The share of the row in the energy of itself and all larger ones."""
        return lamp_scores(rows.weight.square().sum(1))


def distance_to_others(weight: Tensor) -> Tensor:
    """Σ_v ‖w_u − w_v‖ of each row [R, E], a slab of rows at a time."""
    step = max(1, _ELEMENTS // max(1, len(weight)))
    # the exact method: with a matrix product, the distance of equal rows would not be exactly 0
    slabs = [
        torch.cdist(part, weight, compute_mode="donot_use_mm_for_euclid_dist").sum(1)
        for part in weight.split(step)
    ]
    return torch.cat(slabs)


@register_sparser("fpgm")
@dataclass(frozen=True)
class FPGM(Sparser):
    """He et al. (2019), "Filter Pruning via Geometric Median", eq. 6: removes redundant filters, not small ones."""

    def score(self, rows: Rows) -> Tensor:
        """The sum of distances to all other rows."""
        return distance_to_others(rows.weight)


@register_sparser("slimming")
@dataclass(frozen=True)
class Slimming(SlimmingSettings, Sparser):
    """Magnitude of the norm's scale (Liu et al., 2017), which ``strength`` · Σ|γ| in the training loss makes sparse.

    A group without a norm has no scale; it is left unchanged, and the report says so.
    """

    roles = ("scale",)
    comparable = True

    def score(self, rows: Rows) -> Tensor:
        """|γ|."""
        return rows.weight.abs().sum(1)

    def penalty(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The term to add to the loss while training: equation (1) with g(γ) = |γ|."""
        if not tensors:
            return None
        return self.strength * torch.stack([tensor.abs().sum() for tensor in tensors]).sum()


@register_sparser("random")
@dataclass(frozen=True)
class Random(RandomSettings, Sparser):
    """Random scores from a seed and the name of the tensor: the same on every device, and a baseline for the others."""

    comparable = True

    def score(self, rows: Rows) -> Tensor:
        """Uniform numbers."""
        generator = torch.Generator().manual_seed(self.seed ^ zlib.crc32(rows.name.encode()))
        drawn = torch.rand(len(rows.weight), generator=generator, dtype=torch.float64)
        return drawn.to(rows.weight.device, rows.weight.dtype)
