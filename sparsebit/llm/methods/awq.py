"""AWQ: weights with large inputs are scaled up before rounding, and their inputs scaled down by the same factor.

Lin et al., "AWQ" (arXiv 2306.00978). The scale of channel j is ``(mean |x_j|)^α``, and α is searched for per group of
weights with one input, by the error of their outputs; that error is exact from the second moments of the input. The
clipping of the paper is the search for ranges that rtn makes with ``steps`` above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from sparsebit.config.llm.methods import AwqSettings
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.preparation import ChannelScaling, by_source
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics


@METHODS.register("awq")
class Awq(ChannelScaling, AwqSettings):
    """The method; its settings are documented where they are declared."""

    name: ClassVar[str] = "awq"

    def choose_scale(
        self, weights: Sequence[tuple[Tensor, WeightSpec]], statistics: InputStatistics, channels: Tensor
    ) -> Tensor:
        """The best scale for the measured inputs."""
        quantized = [(weight, spec) for weight, spec in weights if spec.code]
        assert statistics.magnitude is not None
        magnitude = by_source(statistics.magnitude / statistics.tokens, channels)
        return self.search(quantized, statistics.mean_gram(), magnitude, channels)

    def search(
        self,
        weights: Sequence[tuple[Tensor, WeightSpec]],
        gram: Tensor,
        magnitude: Tensor,
        channels: Tensor,
    ) -> Tensor:
        """The best scale of each channel of the source, among ``steps`` exponents from 0 to 1."""
        best, lowest = torch.ones_like(magnitude), float("inf")
        for alpha in torch.linspace(0, 1, self.steps + 1).tolist():
            scale = magnitude.clamp(min=1e-4).pow(alpha)
            scale /= (scale.max() * scale.min()).sqrt()
            spread = scale[channels]
            loss = 0.0
            for weight, spec in weights:
                scaled = weight * spread
                error = search_grid(scaled, None, spec, steps=1).snap(scaled) / spread - weight
                loss += float(((error @ gram) * error).sum())
            if loss < lowest:
                best, lowest = scale, loss
        return best
