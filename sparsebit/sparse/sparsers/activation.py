"""What reaches the weights and what they make of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


@register_sparser("activation_norm")
@dataclass(frozen=True)
class ActivationNorm(Sparser):
    """Sun et al. (2024), "A Simple and Effective Pruning Approach for Large Language Models" (Wanda), equation 1."""

    needs = frozenset({"input_norm"})

    def score(self, rows: Rows) -> Tensor:
        """Σ |w| ‖x‖: a large weight on a silent input does nothing."""
        return (rows.weight.abs() * rows.need("input_norm")).sum(1)


@register_sparser("hrank")
@dataclass(frozen=True)
class HRank(Sparser):
    """Average rank of the feature maps (Lin et al., 2020, equation 5), taken behind the norm and the activation."""

    needs = frozenset({"feature_rank"})

    def score(self, rows: Rows) -> Tensor:
        """The average rank: a channel whose maps have low rank carries little."""
        return rows.need("feature_rank")
