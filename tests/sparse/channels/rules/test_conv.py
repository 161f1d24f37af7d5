"""Convolutions: channels are tied through plain, depthwise and grouped ones, and positions keep their size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.sparse.channels.rules.groups import groups_of


def test_a_depthwise_convolution_passes_channels_on() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))
    groups = groups_of(net, torch.zeros(1, 3, 8, 8))
    assert groups.by_name("0").producers == ("0", "1")
    assert {where.tensor for where in groups.by_name("0").slices} == {
        *("0.weight", "0.bias", "1.weight", "1.bias", "2.weight")
    }


def test_groups_lose_alike() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 4, 1))
    groups = groups_of(net, torch.zeros(1, 3, 8, 8))
    blocks = groups.by_name("0").blocks
    assert blocks is not None and blocks.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_positions_keep_their_size() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Conv1d(5, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(self.a(x))  # the channels of one are positions of the other
            return out

    assert "slides over it" in str(groups_of(Transposed(), torch.zeros(1, 5, 4)).by_name("a").frozen)
