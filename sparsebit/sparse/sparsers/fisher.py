"""Fisher information: how much the loss would rise, by the squares of its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def fisher_saliency(weight: Tensor, gradient_square: Tensor) -> Tensor:
    """½ Σ E[g²] w² of each row [R, E]: the second-order change with the Fisher diagonal for the Hessian."""
    return 0.5 * (gradient_square * weight.square()).sum(1)


@register_sparser("fisher")
@dataclass(frozen=True)
class Fisher(Sparser):
    """Empirical Fisher (Theis et al., 2018). A batch is one draw of the gradient: keep batches small."""

    needs = frozenset({"gradient_square"})
    comparable = True
    joint = True

    def score(self, rows: Rows) -> Tensor:
        """The expected rise of the loss."""
        return fisher_saliency(rows.weight, rows.need("gradient_square"))
