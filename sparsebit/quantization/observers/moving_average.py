"""The average of each sample's range, with more weight on recent samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sparsebit.config.quantization.plugins import MovingAverageSettings
from sparsebit.numerics import CodeType
from sparsebit.numerics.snapping import compute_dtype
from sparsebit.quantization.observers.base import Observer, Range, extremes, register_observer


class Average(NamedTuple):
    """Sums from which the average over any longer sequence can be continued."""

    lo: Tensor  # [C], (1 - r) * sum over samples i = 1..n of r^(n - i) * smallest value of sample i
    hi: Tensor  # [C], the same of largest values
    first_lo: Tensor  # [C], smallest value of the first sample
    first_hi: Tensor  # [C]
    samples: Tensor  # [], n, int64


@register_observer("moving_average")
@dataclass(frozen=True, kw_only=True)
class MovingAverage(MovingAverageSettings, Observer[Average]):
    """Exponential moving average of the extremes of each *sample*: ``m = r * m + (1 - r) * extreme``.

    The first sample starts it. Because samples are averaged and not batches, the batch size does not matter. Their
    order does, by the definition of the method; ``merge(a, b)`` is exactly the average over a's samples and then b's.

    Example:
        >>> observer, x = MovingAverage(ema_ratio=0.5), torch.tensor([[[0.0, 4.0], [0.0, 8.0]]])  # [1, 2 samples, 2]
        >>> observer.finish(observer.update(observer.init(x), x), CodeType()).hi
        tensor([6.])
    """

    by_sample: ClassVar[bool] = True

    def init(self, x: Tensor) -> Average:
        """No samples yet."""
        zero = torch.zeros(len(x), dtype=compute_dtype(x.dtype), device=x.device)
        return Average(zero, zero, zero, zero, torch.zeros((), dtype=torch.int64, device=x.device))

    def update(self, state: Average, x: Tensor) -> Average:
        """Continue with the samples of ``x`` [C, B, M] in order; [C, N] is one sample."""
        x = x.detach()
        x = x.unsqueeze(1) if x.dim() == 2 else x
        count = x.shape[1]
        if x.numel() == 0:
            return state
        lo, hi = extremes(x)  # [C, B]
        age = torch.arange(count - 1, -1, -1, dtype=lo.dtype, device=x.device)
        weight = (1 - self.ema_ratio) * torch.pow(torch.full_like(age, self.ema_ratio), age)
        batch = Average(
            (lo * weight).sum(1),
            (hi * weight).sum(1),
            lo[:, 0],
            hi[:, 0],
            torch.full_like(state.samples, count),
        )
        return self.merge(state, batch)

    def merge(self, a: Average, b: Average) -> Average:
        """The samples of ``a`` and then those of ``b``, exactly; the order matters."""
        fade = torch.pow(torch.full_like(a.lo[:1], self.ema_ratio), b.samples)
        started = a.samples > 0
        return Average(
            a.lo * fade + b.lo,
            a.hi * fade + b.hi,
            torch.where(started, a.first_lo, b.first_lo),
            torch.where(started, a.first_hi, b.first_hi),
            a.samples + b.samples,
        )

    def finish(self, state: Average, code: CodeType) -> Range:
        """The average, widened to contain zero. The first sample also has the weight of all before it: r^n."""
        rest = torch.pow(torch.full_like(state.lo[:1], self.ema_ratio), state.samples)
        lo, hi = state.lo + rest * state.first_lo, state.hi + rest * state.first_hi
        return Range(lo.clamp(max=0), hi.clamp(min=0))
