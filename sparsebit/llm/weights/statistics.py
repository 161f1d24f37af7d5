"""What is known about the inputs of a weight: their second moments, and how far they are from the float model's."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.llm.weights.half_products import multiplies_bfloat16_faster

TILE = 256  # rows of the second moments that are computed at once, from the diagonal on


@dataclass
class InputStatistics:
    """Sums over all tokens that reached a weight.

    With x the input after blocks that are already compressed and f the same input in the float model, ``gram`` holds
    the sum of x xᵀ and ``shift`` that of (f - x) xᵀ; ``magnitude`` is the sum of |x|, ``largest`` the largest |x|. The
    second moments are symmetric: ``mean_gram`` reads the upper triangle, and most of the lower one is not computed.
    """

    gram: Tensor  # [in, in]
    shift: Tensor | None  # [in, in]
    magnitude: Tensor  # [in]
    largest: Tensor  # [in]
    tokens: int = 0

    @classmethod
    def empty(cls, size: int, *, shift: bool, device: torch.device | str = "cpu") -> InputStatistics:
        """Before the first token."""
        square = torch.zeros(size, size, device=device)
        row = torch.zeros(size, device=device)
        return cls(square, torch.zeros_like(square) if shift else None, row, row.clone())

    def update(self, inputs: Tensor, floats: Tensor | None = None) -> None:
        """Add tokens [..., in], and the same tokens in the float model."""
        x = inputs.reshape(-1, inputs.shape[-1]).float()
        for start in range(0, x.shape[1], TILE):
            rows = slice(start, start + TILE)
            self.gram[rows, start:].addmm_(x[:, rows].T, x[:, start:])
        if self.shift is not None and floats is not None:
            self.shift += _product(floats.reshape(x.shape).float() - x, x)
        size = x.abs()
        self.magnitude += size.sum(0)
        torch.maximum(self.largest, size.amax(0), out=self.largest)
        self.tokens += len(x)

    def mean_gram(self) -> Tensor:
        """The second moments, [in, in]."""
        upper = self.gram.triu() / max(self.tokens, 1)
        return upper + upper.triu(1).T

    def mean_shift(self) -> Tensor | None:
        """Mean of (f - x) xᵀ, [in, in]."""
        return None if self.shift is None else self.shift / max(self.tokens, 1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``aᵀ b`` in float32, from bfloat16 where the processor multiplies those faster.

    Two or three digits are enough for the sum of a difference; of the full products they would leave nothing.
    """
    if multiplies_bfloat16_faster(a.device):
        return (a.bfloat16().T @ b.bfloat16()).float()
    return a.T @ b
