"""SmoothQuant: outliers of the inputs move into the weights, so that both can be quantized.

Xiao et al., "SmoothQuant" (arXiv 2211.10438), eq. 4: ``s_j = max |x_j|^α / max |w_j|^(1 - α)``; inputs are
divided by s and weights multiplied. Weight-only formats gain little from it; it is for files whose engine rounds
activations too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsebit.config.llm.methods import SmoothSettings
from sparsebit.llm.blocks.calls import BlockCall
from sparsebit.llm.blocks.find import Stack
from sparsebit.llm.blocks.stages import Group
from sparsebit.llm.methods.preparation import PREPARATIONS, PrepareBlock, by_source, scale_inputs
from sparsebit.llm.methods.solver import SpecOf
from sparsebit.llm.weights.statistics import InputStatistics


@PREPARATIONS.register("smoothquant")
class SmoothQuant(SmoothSettings):
    """The method; its settings are documented where they are declared."""

    def start(self, model: nn.Module, stack: Stack) -> PrepareBlock:
        """Every block is prepared by itself."""
        return self.prepare

    def prepare(
        self, block: nn.Module, calls: Sequence[BlockCall], hidden: Sequence[Tensor], spec_of: SpecOf
    ) -> None:
        """Smooth every group of weights that has a source."""

        def choose(
            weights: Sequence[Tensor], statistics: InputStatistics, group: Group, channels: Tensor
        ) -> Tensor:
            largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0).clamp(min=1e-5)
            scale = statistics.largest.clamp(min=1e-5).pow(self.alpha) / largest.pow(1 - self.alpha)
            return by_source(scale, channels).clamp(min=1e-5)

        scale_inputs("smoothquant", block, calls, hidden, spec_of, choose)
