"""Optimal brain damage: the curvature of the loss along each weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.config.pruning.criteria import HessianSettings
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def curvature_saliency(weight: Tensor, hessian_diagonal: Tensor) -> Tensor:
    """½ Σ |h| w² of each row [R, E]. The estimate of a diagonal is noisy and may be negative: magnitudes are taken."""
    return 0.5 * (hessian_diagonal.abs() * weight.square()).sum(1)


@register_sparser("hessian")
@dataclass(frozen=True)
class HessianDiagonal(HessianSettings, Sparser):
    """LeCun et al. (1990), equation 5, with Hutchinson's estimate of the diagonal: ``samples`` random signs a batch."""

    needs = frozenset({"hessian_diagonal"})
    comparable = True
    joint = True

    def score(self, rows: Rows) -> Tensor:
        """The second-order rise of the loss."""
        return curvature_saliency(rows.weight, rows.need("hessian_diagonal"))
