"""Reductions: sums of zeros are free, means are divided anew, norms of negative order keep everything."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.sparse.channels.rules.groups import groups_of


class Reduced(nn.Module):
    def __init__(self, reduce: object) -> None:
        super().__init__()
        self.a, self.b, self.reduce = nn.Linear(3, 8), nn.Linear(1, 4), reduce

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.reduce(self.a(x)))  # type: ignore[operator]
        return out


def test_a_mean_is_divided_anew() -> None:
    groups = groups_of(Reduced(lambda x: x.mean(-1, keepdim=True)), torch.randn(2, 3))
    assert groups.by_name("a").frozen is None and list(groups.trace.averages) == ["mean"]


@pytest.mark.parametrize(("order", "free"), [(2, True), (float("inf"), True), (-1, False)])
def test_a_norm_of_negative_order_is_decided_by_zeros(order: float, free: bool) -> None:
    net = Reduced(lambda x: torch.linalg.vector_norm(x, order, dim=-1, keepdim=True))
    assert (groups_of(net, torch.randn(2, 3)).by_name("a").frozen is None) == free


def test_a_maximum_keeps_its_channels() -> None:
    groups = groups_of(Reduced(lambda x: x.amax(-1, keepdim=True)), torch.randn(2, 3))
    assert "amax" in str(groups.by_name("a").frozen) and "works along it" in str(groups.by_name("a").frozen)
