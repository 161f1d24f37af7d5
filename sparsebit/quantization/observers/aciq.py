"""The optimal range for data with a Gaussian or Laplacian distribution.

R. Banner, Y. Nahshan, D. Soudry, "Post training 4-bit quantization of convolutional networks for rapid-deployment",
NeurIPS 2019. For a density with spread 1, clipping at ``a`` and 2^M equal cells between -a and a cost (eq. 5)
``E(a) = a^2 / (3 * 4^M) + 2 * integral from a of f(x) (x - a)^2 dx``; the clip below is where its derivative is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from sparsebit.config.quantization.plugins import ACIQSettings, Distribution
from sparsebit.numerics import CodeType
from sparsebit.quantization.observers.base import Range, register_observer
from sparsebit.quantization.observers.histogram import Histogram, HistogramObserver, bin_edges


@register_observer("aciq")
@dataclass(frozen=True, kw_only=True)
class ACIQ(ACIQSettings, HistogramObserver):
    """Clips at a multiple of the spread that depends on the number of bits: ``mean ± clip * spread``, inside the data.

    The spread is the standard deviation (``gaus``) or the mean distance from the mean (``laplace``), measured on the
    histogram. Data without negative values is treated as the positive half of a distribution around zero, as after a
    ReLU: its spread is that of the mirrored data without zeros, and on an affine grid, which then has twice as many
    cells for it, the clip is that of one bit more. The theory assumes equal cells; for 8-bit floats the range is the
    full range of the data.
    """

    def finish(self, state: Histogram, code: CodeType) -> Range:
        """The clipped range."""
        full = Range(state.lo.clamp(max=0), state.hi.clamp(min=0))
        if not code.is_integer:
            return full
        edges = bin_edges(state)
        middle = (edges[:, 1:] + edges[:, :-1]) / 2
        half = (state.lo >= 0) | (state.hi <= 0)
        weight = state.counts.double()
        weight[:, self.bins - 1 : self.bins + 1] *= ~half[:, None]  # zeros, with the smallest values
        count = weight.sum(1).clamp(min=1)
        mean = torch.where(half, 0.0, (weight * middle).sum(1) / count)
        distance = (middle - mean[:, None]).abs()
        if self.distribution == "gaus":
            spread = ((weight * distance**2).sum(1) / count).sqrt()
        else:
            spread = (weight * distance).sum(1) / count
        whole, halved = (optimal_clip(self.distribution, bits) for bits in (code.bits, code.bits + 1))
        reach = spread * (whole if code.symmetric else torch.where(half, halved, whole))
        lo = torch.maximum((mean - reach).to(full.lo), full.lo)
        hi = torch.minimum((mean + reach).to(full.hi), full.hi)
        return Range(lo.clamp(max=0), hi.clamp(min=0))


@lru_cache
def optimal_clip(distribution: Distribution, bits: int) -> float:
    """Where to clip a distribution with spread 1 so that ``bits`` bits represent it best.

    The derivative of the cost is increasing, so its root is found by bisection.

    Example:
        >>> [round(optimal_clip("laplace", bits), 2) for bits in (2, 4, 8)]
        [2.83, 5.03, 9.9]
    """

    def slope(clip: float) -> float:
        """Half the derivative: rounding costs more with a wider range, clipping less."""
        if distribution == "laplace":
            beyond = math.exp(-clip) / 2  # the integral from clip of f(x) (x - clip)
        else:
            density = math.exp(-clip * clip / 2) / math.sqrt(2 * math.pi)
            beyond = density - clip * math.erfc(clip / math.sqrt(2)) / 2
        return clip / (3 * 4.0**bits) - 2 * beyond

    low, high = 0.0, 64.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return high
