"""Models that several tests of capture share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Dropping(nn.Module):
    """Depends on the mode in a constant: the way most models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), 0.5, self.training)
