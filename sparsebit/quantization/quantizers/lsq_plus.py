"""LSQ+: learned scales, and learned zero points for activations (Bhalgat et al., arXiv 2004.09576)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.config import Side, TensorSpec
from sparsebit.numerics import Layout
from sparsebit.numerics.grid import SCALE_OF_ZEROS
from sparsebit.numerics.layout import join_blocks, row_blocks
from sparsebit.quantization.observers.base import OBSERVERS, Observer
from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.lsq import LSQ
from sparsebit.quantization.quantizers.registration import register_quantizer


@register_quantizer
class LSQPlus(LSQ):
    """Weights start from three standard deviations around their mean; activations from the range of their observer.

    The zero point of an activation is a real number during training, and is rounded to the nearest code when used.
    """

    TYPE = "lsq+"

    def __init__(self, name: str, side: Side, spec: TensorSpec, layout: Layout | None = None) -> None:
        super().__init__(name, side, spec, layout)
        if side == "A":
            del self.zero_point
            self.zero_point = nn.Parameter(torch.empty(0))

    def first_observer(self) -> Observer[Any]:
        """The observer that the config names."""
        made: Observer[Any] = OBSERVERS.make(self.spec.observer, **self.spec.observer_options)
        return made

    def set_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        """Set the first grid: from the weight's standard deviation (eq. 8), or from the measured range."""
        if x is None:
            Quantizer.set_range(self, lo, hi, x)
            return
        reach = join_blocks([_reach(block) for block in row_blocks(x.detach().double(), self.layout)])
        scale = 2 * reach / (self.code.high - self.code.low)
        self.set_grid(torch.where(scale > 0, scale, SCALE_OF_ZEROS).float(), torch.zeros_like(scale).float())

    def gradient_scale(self, x: Tensor) -> float | Tensor:
        """1 / sqrt(N * qmax), N values per scale, independent of the current zero point."""
        shared = self.values_per_scale(x) * self.code.high
        # A number would be compiled anew for every size.
        if torch.compiler.is_compiling() and self.side == "A":
            return torch.rsqrt(shared * torch.ones_like(self.scale[:1]).detach())
        return 1 / math.sqrt(shared)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The current values, with the zero point on a code."""
        scale, zero_point = super().scale_and_zero_point(x)
        zero_point = zero_point.clamp(self.code.low, self.code.high)
        if zero_point.requires_grad:  # rounded, with the gradient of the number itself
            return scale, zero_point + (zero_point.round() - zero_point).detach()
        return scale, zero_point.round()


def _reach(values: Tensor) -> Tensor:
    """How far three standard deviations around the mean of each row ([C, N]) reach from zero; [C]."""
    mean, std = values.mean(1), values.std(1, correction=int(values.shape[1] > 1))
    return torch.maximum((mean - 3 * std).abs(), (mean + 3 * std).abs())
