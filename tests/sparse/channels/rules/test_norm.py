"""Norms: factors go with their channels, statistics are taken over what is left."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.sparse.channels import ChannelGroups
from tests.sparse.channels.rules.groups import groups_of


def test_factors_and_statistics_go_with_their_channels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1))
    roles = {
        where.tensor: where.role for where in groups_of(net, torch.zeros(1, 3, 4, 4)).by_name("0").slices
    }
    assert roles["1.weight"] == "scale" and roles["1.running_var"] == "state"


def test_a_norm_over_channels_is_listed_as_a_statistic() -> None:
    groups = groups_of(nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Linear(8, 4)), torch.zeros(1, 3))
    assert list(groups.trace.statistics) == ["_1"] and groups.by_name("0").frozen is None


def test_many_groups_of_a_norm_go_whole_and_few_keep_as_many_channels() -> None:
    def made(count: int) -> ChannelGroups:
        net = nn.Sequential(nn.Conv2d(3, 16, 1), nn.GroupNorm(count, 16), nn.Conv2d(16, 4, 1))
        return groups_of(net, torch.zeros(1, 3, 4, 4))

    assert made(4).by_name("0").channels == 4 and made(2).by_name("0").blocks is not None
