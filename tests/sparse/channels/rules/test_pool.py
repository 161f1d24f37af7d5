"""Pooling keeps channels and mixes positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.sparse.channels.rules.groups import groups_of


def test_channels_pass_and_positions_of_a_maximum_are_not_zero() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1), nn.MaxUnpool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            y, where = nn.functional.max_pool2d(self.a(x), 2, return_indices=True)
            out: Tensor = self.b(self.c(y, where))
            return out

    groups = groups_of(Pooled(), torch.zeros(1, 3, 4, 4))
    assert groups.by_name("a").frozen is None
    values, positions = next(value for value in groups.trace.values.values() if isinstance(value, tuple))
    assert values.zero and not positions.zero
