"""LAMP: magnitudes made comparable between layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


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
