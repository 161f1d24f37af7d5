"""The exact running range."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.numerics import CodeType
from sparsebit.quantization.observers.base import Observer, Range, extremes, no_range, register_observer


@register_observer("minmax")
@dataclass(frozen=True, kw_only=True)
class MinMax(Observer[Range]):
    """Smallest and largest value seen. Exact in any order, but a single outlier sets the scale.

    Example:
        >>> observer, x = MinMax(), torch.tensor([[-1.0, 5.0], [2.0, 3.0]])
        >>> observer.finish(observer.update(observer.init(x), x), CodeType())
        Range(lo=tensor([-1.,  0.]), hi=tensor([5., 3.]))
    """

    def init(self, x: Tensor) -> Range:
        """No range yet: [+inf, -inf]."""
        return no_range(x)

    def update(self, state: Range, x: Tensor) -> Range:
        """Widen by the extremes of ``x`` [C, N]."""
        return self.merge(state, extremes(x.detach()))

    def merge(self, a: Range, b: Range) -> Range:
        """The range of both."""
        return Range(torch.minimum(a.lo, b.lo), torch.maximum(a.hi, b.hi))

    def finish(self, state: Range, code: CodeType) -> Range:
        """The range, widened to contain zero."""
        return Range(state.lo.clamp(max=0), state.hi.clamp(min=0))
