"""Network slimming: the scale of the norm behind a layer says whether a channel is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.config.pruning.criteria import SlimmingSettings
from sparsebit.sparse.sparsers.base import Rows, Sparser, register_sparser


@register_sparser("slimming")
@dataclass(frozen=True)
class Slimming(SlimmingSettings, Sparser):
    """Magnitude of the norm's scale (Liu et al., 2017), which ``strength`` · Σ|γ| in the training loss makes sparse.

    A group without a norm has no scale; it is left unchanged, and the report says so.
    """

    roles = ("scale",)
    comparable = True

    def score(self, rows: Rows) -> Tensor:
        """|γ|."""
        return rows.weight.abs().sum(1)

    def penalty(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """The term to add to the loss while training: equation (1) with g(γ) = |γ|."""
        if not tensors:
            return None
        return self.strength * torch.stack([tensor.abs().sum() for tensor in tensors]).sum()
