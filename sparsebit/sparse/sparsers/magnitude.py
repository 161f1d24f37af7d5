"""The size of the weights: the smaller, the less a row can do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.config.pruning.criteria import L0NormSettings
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


@register_sparser("l0norm")
@dataclass(frozen=True)
class L0Norm(L0NormSettings, Sparser):
    """Counts the weights above ``epsilon``; for nets trained towards zeros, where magnitudes of the rest say little."""

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
    """Euclidean length; weighs single large weights more than the sum of magnitudes does."""

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
    """Layer-adaptive magnitude (Lee et al., 2021, equation 1): what is left of the layer's energy without the row.

    Inside a layer it orders as the length does; its use is a global choice.
    """

    comparable = True

    def score(self, rows: Rows) -> Tensor:
        """The share of the row in the energy of itself and all larger ones."""
        return lamp_scores(rows.weight.square().sum(1))
