"""Weights by what reaches them: a large weight on a silent input does nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def input_weighted_magnitude(weight: Tensor, input_norm: Tensor) -> Tensor:
    """Σ |w| ‖x‖ of each row [R, E]."""
    return (weight.abs() * input_norm).sum(1)


@register_sparser("activation_norm")
@dataclass(frozen=True)
class ActivationNorm(Sparser):
    """Sun et al. (2024), "A Simple and Effective Pruning Approach for Large Language Models" (Wanda), equation 1."""

    needs = frozenset({"input_norm"})

    def score(self, rows: Rows) -> Tensor:
        """The sum of |w| ‖x‖."""
        return input_weighted_magnitude(rows.weight, rows.need("input_norm"))
