"""Chance: the criterion that every other one has to beat."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.config.pruning.criteria import RandomSettings
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


@register_sparser("random")
@dataclass(frozen=True)
class Random(RandomSettings, Sparser):
    """Scores drawn from a seed and the name of the tensor, so that a choice can be repeated on any device."""

    comparable = True

    def score(self, rows: Rows) -> Tensor:
        """Uniform numbers."""
        generator = torch.Generator().manual_seed(self.seed ^ zlib.crc32(rows.name.encode()))
        drawn = torch.rand(len(rows.weight), generator=generator, dtype=torch.float64)
        return drawn.to(rows.weight.device, rows.weight.dtype)
