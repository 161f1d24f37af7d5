"""Choose units to keep, by chance."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebit.sparse.channels import ChannelGroups, Group


def choose(groups: ChannelGroups, ratio: float, seed: int = 0) -> dict[str, Tensor]:
    """Remove this part of every group, at random; as many from each block, and never everything."""
    generator = torch.Generator().manual_seed(seed)
    return {group.name: _choose(group, ratio, generator) for group in groups.free}


def _choose(group: Group, ratio: float, generator: torch.Generator) -> Tensor:
    kept = torch.zeros(group.channels, dtype=torch.bool)
    blocks = torch.zeros(group.channels, dtype=torch.int64) if group.blocks is None else group.blocks
    least = int(torch.bincount(blocks).min())
    lost = min(round(ratio * least), least - 1)
    for number in range(int(blocks.max()) + 1):
        mine = torch.nonzero(blocks == number).reshape(-1)
        kept[mine[torch.randperm(len(mine), generator=generator)[: len(mine) - lost]]] = True
    return kept
