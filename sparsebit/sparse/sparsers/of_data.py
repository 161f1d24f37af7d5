"""Criteria that use activations and gradients of the loss."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.config.pruning.criteria import HessianSettings
from sparsebit.sparse.evidence.gradients import HessianDiagonalEstimate
from sparsebit.sparse.evidence.statistic import Statistic
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


@register_sparser("activation_norm")
@dataclass(frozen=True)
class ActivationNorm(Sparser):
    """Sun et al. (2024), "A Simple and Effective Pruning Approach for Large Language Models" (Wanda), equation 1."""

    needs = frozenset({"input_norm"})

    def score(self, rows: Rows) -> Tensor:
        """Σ |w| ‖x‖: a large weight on an input near zero has no effect."""
        return (rows.weight.abs() * rows.need("input_norm")).sum(1)


@register_sparser("hrank")
@dataclass(frozen=True)
class HRank(Sparser):
    """Average rank of the feature maps (Lin et al., 2020, equation 5), after the norm and the activation."""

    needs = frozenset({"feature_rank"})

    def score(self, rows: Rows) -> Tensor:
        """The average rank: a channel whose maps have low rank carries little information."""
        return rows.need("feature_rank")


class LossChange(Sparser):
    """The change of the loss when a row becomes zero, estimated from gradients and curvature."""

    comparable = True
    joint = True


@register_sparser("taylor")
@dataclass(frozen=True)
class Taylor(LossChange):
    """First order (Molchanov et al., 2019, "Importance Estimation for Neural Network Pruning", equations 7 and 8)."""

    needs = frozenset({"gradient"})

    def score(self, rows: Rows) -> Tensor:
        """(Σ g w)²: summed before squaring, so increases and decreases of the loss inside a row cancel."""
        return (rows.need("gradient") * rows.weight).sum(1).square()


@register_sparser("taylor2")
@dataclass(frozen=True)
class Taylor2(LossChange):
    """Second order (the same paper, equation 6). Needs one more backward pass per batch."""

    needs = frozenset({"gradient", "hessian_weight"})

    def score(self, rows: Rows) -> Tensor:
        """(Σ g w − ½ w (H w))², where H w is the Hessian times all weights."""
        return ((rows.need("gradient") - 0.5 * rows.need("hessian_weight")) * rows.weight).sum(1).square()


@register_sparser("gradient_weight")
@dataclass(frozen=True)
class GradientWeight(LossChange):
    """Connection sensitivity (Lee et al., 2019, "SNIP", equation 4); single weights are ordered as by ``taylor``."""

    needs = frozenset({"gradient"})

    def score(self, rows: Rows) -> Tensor:
        """Σ|g w|: unlike in a Taylor term, increases and decreases of the loss inside a row do not cancel."""
        return (rows.need("gradient") * rows.weight).abs().sum(1)


@register_sparser("fisher")
@dataclass(frozen=True)
class Fisher(LossChange):
    """Empirical Fisher (Theis et al., 2018). Each batch gives one sample of the gradient, so keep batches small."""

    needs = frozenset({"gradient_square"})

    def score(self, rows: Rows) -> Tensor:
        """½ Σ E[g²] w²: the second-order change, with the Fisher diagonal as the Hessian."""
        return 0.5 * (rows.need("gradient_square") * rows.weight.square()).sum(1)


@register_sparser("hessian")
@dataclass(frozen=True)
class HessianDiagonal(HessianSettings, LossChange):
    """LeCun et al. (1990), equation 5, with Hutchinson's estimate of the diagonal (``samples`` per batch)."""

    needs = frozenset({"hessian_diagonal"})

    def statistic(self, name: str) -> Statistic:
        """The estimate, with this criterion's settings."""
        return HessianDiagonalEstimate(samples=self.samples, seed=self.seed)

    def score(self, rows: Rows) -> Tensor:
        """½ Σ |h| w²: the estimate of a diagonal is noisy and may be negative, so magnitudes are used."""
        return 0.5 * (rows.need("hessian_diagonal").abs() * rows.weight.square()).sum(1)
