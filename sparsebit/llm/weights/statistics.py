"""What is known about the inputs of a weight: their second moments, beside those of the model in float."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class InputStatistics:
    """Sums over all tokens that reached a weight.

    With x the input behind blocks that are already compressed and f the same input in the float model, ``gram`` holds
    the sum of x xᵀ and ``cross`` that of f xᵀ; ``magnitude`` is the sum of |x|, ``largest`` the largest |x|.
    """

    gram: Tensor  # [in, in]
    cross: Tensor | None  # [in, in]
    magnitude: Tensor  # [in]
    largest: Tensor  # [in]
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
        size = x.abs()
        self.magnitude += size.sum(0)
        torch.maximum(self.largest, size.amax(0), out=self.largest)
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
        self.magnitude += other.magnitude
        torch.maximum(self.largest, other.largest, out=self.largest)
        self.tokens += other.tokens
