"""Element by element: what meets is tied, a constant fill follows, one slope a channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.sparse.channels.rules.groups import groups_of


class Joined(nn.Module):
    def __init__(self, join: object) -> None:
        super().__init__()
        self.a, self.b, self.c, self.join = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 2), join

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(self.join(self.a(x), self.b(x)))  # type: ignore[operator]
        return out


def test_what_meets_goes_together() -> None:
    groups = groups_of(Joined(lambda a, b: torch.maximum(a, b)), torch.randn(2, 3))
    assert groups.by_name("a").producers == ("a", "b")


def test_a_constant_fill_takes_the_size_of_what_it_meets() -> None:
    groups = groups_of(Joined(lambda a, b: a * torch.ones(2, 8) + b), torch.randn(2, 3))
    assert groups.by_name("a").frozen is None


def test_one_slope_a_channel() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.PReLU(8), nn.Linear(8, 2))
    assert "1.weight" in {where.tensor for where in groups_of(net, torch.randn(2, 3)).by_name("0").slices}
