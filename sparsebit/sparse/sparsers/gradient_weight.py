"""Gradient times weight: how strongly the loss leans on each weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def connection_sensitivity(weight: Tensor, gradient: Tensor) -> Tensor:
    """Σ|g w| of each row [R, E]. Unlike a Taylor term, gains and losses inside a row add up."""
    return (gradient * weight).abs().sum(1)


@register_sparser("gradient_weight")
@dataclass(frozen=True)
class GradientWeight(Sparser):
    """Connection sensitivity (Lee et al., 2019, "SNIP", equation 4); one weight alone is ordered as by ``taylor``."""

    needs = frozenset({"gradient"})
    comparable = True
    joint = True

    def score(self, rows: Rows) -> Tensor:
        """The sum of |g w|."""
        return connection_sensitivity(rows.weight, rows.need("gradient"))
