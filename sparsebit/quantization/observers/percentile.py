"""The range without the few values furthest from zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.config.quantization.plugins import PercentileSettings
from sparsebit.numerics import CodeType
from sparsebit.quantization.observers.base import Range, register_observer
from sparsebit.quantization.observers.histogram import Histogram, HistogramObserver, bin_width


@register_observer("percentile")
@dataclass(frozen=True, kw_only=True)
class Percentile(PercentileSettings, HistogramObserver):
    """Clips the fraction ``alpha`` of the positive and of the negative values, those furthest from zero.

    With P values at or above zero and M below, of n together, ``hi`` is the k-th smallest value for
    ``k = n - round(alpha * P)`` and ``lo`` for ``k = max(round(alpha * M), 1)``; a side without values ends at zero.
    The bin of the k-th value is exact; inside it the value is interpolated, so the error of the ends is less than a
    bin.

    Example:
        >>> observer, x = Percentile(alpha=0.25), torch.tensor([[1.0, 2.0, 3.0, 100.0]])
        >>> observer.finish(observer.update(observer.init(x), x), CodeType()).hi < 3.1
        tensor([True])
    """

    def finish(self, state: Histogram, code: CodeType) -> Range:
        """The range between the two values."""
        cumulative = state.counts.cumsum(1)
        total, negative = cumulative[:, -1], cumulative[:, self.bins - 1]
        positive = total - negative
        top = total - (positive.double() * self.alpha).round().to(torch.int64)
        bottom = (negative.double() * self.alpha).round().to(torch.int64).clamp(min=1)
        hi = torch.where(positive > 0, self._value(state, cumulative, top, top), 0.0)
        lo = torch.where(negative > 0, self._value(state, cumulative, bottom, bottom - 1), 0.0)
        lo, hi = torch.maximum(lo.to(state.lo), state.lo), torch.minimum(hi.to(state.hi), state.hi)
        return Range(lo.clamp(max=0), hi.clamp(min=0))

    def _value(self, state: Histogram, cumulative: Tensor, k: Tensor, rank: Tensor) -> Tensor:
        """Inside the bin of the ``k``-th smallest value: the point that ``rank`` values lie below; all [C]."""
        column = torch.searchsorted(cumulative, k.clamp(min=1)[:, None]).clamp(max=2 * self.bins - 1)
        inside = state.counts.gather(1, column)
        before = cumulative.gather(1, column) - inside
        share = (rank[:, None] - before) / inside.clamp(min=1)
        return ((column - self.bins + share) * bin_width(state)[:, None]).squeeze(1)
