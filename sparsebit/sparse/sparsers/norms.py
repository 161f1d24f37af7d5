"""Norms of the weights: the smaller, the less the row can do."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.config.pruning.criteria import L0NormSettings
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def l0_norm(weight: Tensor, epsilon: float) -> Tensor:
    """How many elements of each row [R, E] are larger than ``epsilon``."""
    return (weight.abs() > epsilon).sum(1).to(weight.dtype)


def l1_norm(weight: Tensor) -> Tensor:
    """The sum of magnitudes of each row [R, E]."""
    return weight.abs().sum(1)


def l2_norm(weight: Tensor) -> Tensor:
    """The length of each row [R, E]."""
    return weight.square().sum(1).sqrt()


@register_sparser("l0norm")
@dataclass(frozen=True)
class L0Norm(L0NormSettings, Sparser):
    """Counts the weights above ``epsilon``; for nets trained towards zeros, where magnitudes of the rest say little."""

    def score(self, rows: Rows) -> Tensor:
        """The number of weights that count."""
        return l0_norm(rows.weight, self.epsilon)


@register_sparser("l1norm")
@dataclass(frozen=True)
class L1Norm(Sparser):
    """Sum of magnitudes (Li et al., 2017, "Pruning Filters for Efficient ConvNets")."""

    def score(self, rows: Rows) -> Tensor:
        """The sum of magnitudes."""
        return l1_norm(rows.weight)


@register_sparser("l2norm")
@dataclass(frozen=True)
class L2Norm(Sparser):
    """Euclidean length; weighs single large weights more than the sum of magnitudes does."""

    def score(self, rows: Rows) -> Tensor:
        """The length."""
        return l2_norm(rows.weight)
