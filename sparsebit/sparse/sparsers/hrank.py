"""HRank: a channel whose maps have low rank carries little."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


def map_ranks(value: Tensor, channel_axis: int) -> Tensor:
    """Rank of every channel's map, summed over the batch: [C].

    A map is the last two axes of what remains besides batch and channel. A channel with one axis or none has a
    vector or a number for a map, whose rank says whether it is zero.
    """
    maps = value.movedim(channel_axis, 0).float()  # [C, batch, ...]
    if maps.ndim < 4:
        return (
            (maps.reshape(len(maps), maps.shape[1] if maps.ndim > 1 else 1, -1) != 0).any(-1).sum(1).float()
        )
    flat = maps.reshape(-1, *maps.shape[-2:])
    ranks: Tensor = torch.linalg.matrix_rank(flat)
    return ranks.reshape(len(maps), -1).sum(1).float()


@register_sparser("hrank")
@dataclass(frozen=True)
class HRank(Sparser):
    """Average rank of the feature maps (Lin et al., 2020, equation 5), taken behind the norm and the activation."""

    needs = frozenset({"feature_rank"})

    def score(self, rows: Rows) -> Tensor:
        """The average rank."""
        return rows.need("feature_rank")
