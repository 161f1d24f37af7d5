"""What is removed from a computed weight need not have been zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsebit import capture
from sparsebit.sparse.channels.find import find_groups


class ComputedWeight(nn.Module):
    """A layer with a weight from a softmax or from a product, then a norm of its results."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(12, 16))
        self.last = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight * 2 if self.kind == "product" else self.weight.softmax(-1)
        if self.kind == "convolution":
            y = F.conv1d(x.unsqueeze(-1), weight.unsqueeze(-1)).squeeze(-1)
        else:
            y = F.linear(x, weight)
        out: Tensor = self.last(F.normalize(y, dim=-1))
        return out


@pytest.mark.parametrize(("kind", "free"), [("softmax", False), ("convolution", False), ("product", True)])
def test_a_norm_after_a_computed_weight(kind: str, free: bool) -> None:
    groups = find_groups(capture(ComputedWeight(kind).eval(), torch.randn(2, 16)))
    shrinking = {where.tensor for group in groups.free for where in group.slices}
    assert shrinking == ({"weight", "last.weight"} if free else set())
