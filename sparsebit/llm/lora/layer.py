"""A packed linear layer with a low-rank adapter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.llm.packed.linear import PackedLinear


class LoraLinear(nn.Module):
    """``base(x) + scaling * B A x``; only A and B learn. B starts at zero, so nothing changes at first.

    Example:
        >>> from sparsebit.numerics import CodeType, Grid, Layout
        >>> from sparsebit.numerics.packed import PackedTensor
        >>> grid = Grid(torch.ones(2), torch.zeros(2), CodeType("int", 4), Layout(kind="channel"))
        >>> layer = LoraLinear(PackedLinear(PackedTensor.of(torch.eye(2), grid), None), rank=1, alpha=2.0)
        >>> layer(torch.tensor([[3.0, 4.0]])).tolist(), layer.scaling
        ([[3.0, 4.0]], 2.0)
    """

    def __init__(self, base: PackedLinear, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        self.base, self.rank, self.alpha, self.dropout = base, rank, alpha, dropout
        self.in_features, self.out_features = base.in_features, base.out_features
        device = base.packed.device
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, device=device))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=device))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)

    @property
    def scaling(self) -> float:
        """The factor of the adapter's product."""
        return self.alpha / self.rank

    @property
    def weight(self) -> Tensor:
        """The sum of the base weight and the adapter's product, [out, in]."""
        return self.base.weight + self.scaling * (self.lora_B @ self.lora_A)

    def forward(self, x: Tensor) -> Tensor:
        """The base and the adapter; the adapter in its own precision."""
        seen = F.dropout(x.to(self.lora_A.dtype), self.dropout, self.training)
        added = self.scaling * F.linear(F.linear(seen, self.lora_A), self.lora_B)
        made: Tensor = self.base(x)
        return made + added.to(made.dtype)

    def extra_repr(self) -> str:
        """Rank and scaling, as printing the model shows them."""
        return f"rank={self.rank}, scaling={self.scaling:g}"
