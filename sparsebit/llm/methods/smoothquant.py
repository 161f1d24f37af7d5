"""SmoothQuant: outliers of the inputs move into the weights, so that both can be quantized.

Xiao et al., "SmoothQuant" (arXiv 2211.10438), eq. 4: ``s_j = max |x_j|^α / max |w_j|^(1 - α)``; inputs are
divided by s and weights multiplied. Weight-only formats gain little from it; it is for files whose engine rounds
activations too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from sparsebit.config.llm.methods import SmoothSettings
from sparsebit.llm.methods.preparation import ChannelScaling, by_source
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics


@METHODS.register("smoothquant")
class SmoothQuant(ChannelScaling, SmoothSettings):
    """The method; its settings are documented where they are declared."""

    name: ClassVar[str] = "smoothquant"

    def choose_scale(
        self, weights: Sequence[tuple[Tensor, WeightSpec]], statistics: InputStatistics, channels: Tensor
    ) -> Tensor:
        """Equation 4; its mean if a channel of the source feeds several input channels."""
        assert statistics.largest is not None
        largest = torch.stack([weight.abs().amax(0) for weight, _ in weights]).amax(0).clamp(min=1e-5)
        scale = statistics.largest.clamp(min=1e-5).pow(self.alpha) / largest.pow(1 - self.alpha)
        return by_source(scale, channels).clamp(min=1e-5)
