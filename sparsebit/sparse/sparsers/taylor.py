"""Taylor expansion: the change of the loss when a row becomes zero, to first or second order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def taylor_first(weight: Tensor, gradient: Tensor) -> Tensor:
    """(Σ g w)² of each row [R, E]. Summed before squaring: gains and losses inside a row cancel."""
    return (gradient * weight).sum(1).square()


def taylor_second(weight: Tensor, gradient: Tensor, hessian_weight: Tensor) -> Tensor:
    """(Σ g w − ½ w (H w))² of each row [R, E], where H w is the Hessian times all weights."""
    return ((gradient - 0.5 * hessian_weight) * weight).sum(1).square()


@register_sparser("taylor")
@dataclass(frozen=True)
class Taylor(Sparser):
    """First order (Molchanov et al., 2019, "Importance Estimation for Neural Network Pruning", equations 7 and 8)."""

    needs = frozenset({"gradient"})
    comparable = True
    joint = True

    def score(self, rows: Rows) -> Tensor:
        """The squared change of the loss."""
        return taylor_first(rows.weight, rows.need("gradient"))


@register_sparser("taylor2")
@dataclass(frozen=True)
class Taylor2(Sparser):
    """Second order (the same paper, equation 6). Costs one more backward pass a batch."""

    needs = frozenset({"gradient", "hessian_weight"})
    comparable = True
    joint = True

    def score(self, rows: Rows) -> Tensor:
        """The squared change of the loss."""
        return taylor_second(rows.weight, rows.need("gradient"), rows.need("hessian_weight"))
