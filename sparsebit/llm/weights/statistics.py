"""What is known about the inputs of a weight: their second moments, beside those of the model in float."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class InputStatistics:
    """Sums over all tokens that reached a weight.

    With x the input behind blocks that are already compressed and f the same input in the float model, ``gram`` holds
    the sum of x xᵀ and ``cross`` that of f xᵀ; ``total`` and ``magnitude`` are the sums of x and |x|.
    """

    gram: Tensor  # [in, in]
    cross: Tensor | None  # [in, in]
    total: Tensor  # [in]
    magnitude: Tensor  # [in]
    tokens: int = 0

    @classmethod
    def empty(cls, size: int, *, cross: bool, device: torch.device | str = "cpu") -> InputStatistics:
        """Before the first token."""
        square = torch.zeros(size, size, device=device)
        row = torch.zeros(size, device=device)
        return cls(square, torch.zeros_like(square) if cross else None, row, row.clone())

    def update(self, inputs: Tensor, floats: Tensor | None = None) -> None:
        """Add tokens [..., in], and the same tokens in the float model."""
        x = inputs.reshape(-1, inputs.shape[-1]).float()
        self.gram.addmm_(x.T, x)
        if self.cross is not None and floats is not None:
            self.cross.addmm_(floats.reshape(x.shape).float().T, x)
        self.total += x.sum(0)
        self.magnitude += x.abs().sum(0)
        self.tokens += len(x)

    def mean_gram(self) -> Tensor:
        """The second moments, [in, in]."""
        return self.gram / max(self.tokens, 1)

    def mean_cross(self) -> Tensor | None:
        """Second moments with the float inputs, [in, in]."""
        return None if self.cross is None else self.cross / max(self.tokens, 1)

    def merge(self, other: InputStatistics) -> None:
        """Add what was seen elsewhere, such as on another rank."""
        self.gram += other.gram
        if self.cross is not None and other.cross is not None:
            self.cross += other.cross
        self.total += other.total
        self.magnitude += other.magnitude
        self.tokens += other.tokens
