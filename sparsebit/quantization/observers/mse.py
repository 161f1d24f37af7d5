"""The range whose grid has the smallest squared error on the data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsebit.config.quantization.plugins import MSESettings
from sparsebit.numerics import CodeType, Grid, choose_grid
from sparsebit.numerics.snapping import compute_dtype, snap, steps_of
from sparsebit.quantization.observers.base import Range, extremes, register_observer, require_finite
from sparsebit.quantization.observers.histogram import Histogram, HistogramObserver, bin_edges

# Elements worked on at a time: many, as each step over them costs ten calls, but few enough for a large cache.
CPU_CHUNK, DEVICE_CHUNK = 2**20, 2**23
ROUNDS = 4


@register_observer("mse")
@dataclass(frozen=True, kw_only=True)
class MSE(MSESettings, HistogramObserver):
    """Tries the data's range reduced by 0, 1, 2, ... 79 % and keeps the best; of equally good ones, the widest.

    If the smallest is best, as with extreme outliers, the search continues from there, at most ROUNDS times. The error
    is that of the actual grid of a range. From a stream it is computed on the histogram, as if values were spread
    evenly inside each bin, and zero in the two bins at zero. ``observe``, for weights, uses the values themselves.

    Example:
        >>> x = torch.tensor([[-1.0, 1.0, 1.0, 1.05]])
        >>> bool(MSE().observe(x, CodeType.of(bits=2)).hi < 1.05)
        True
    """

    def finish(self, state: Histogram, code: CodeType) -> Range:
        """The best of the ranges by the histogram."""
        return self._search(Range(state.lo.clamp(max=0), state.hi.clamp(min=0)), state, code)

    def observe(self, x: Tensor, code: CodeType) -> Range:
        """The best of the ranges by the values of ``x`` [C, N] themselves."""
        lo, hi = extremes(x.detach())
        if not (torch.maximum(hi, -lo) < torch.inf).all():
            require_finite(x.detach())
        return self._search(Range(lo.clamp(max=0), hi.clamp(min=0)), x.detach(), code)

    def _search(self, full: Range, data: Histogram | Tensor, code: CodeType, rounds: int = ROUNDS) -> Range:
        shares = 1 - self.shrink * torch.arange(self.steps, dtype=full.lo.dtype, device=full.lo.device)
        candidates = choose_grid(full.lo * shares[:, None], full.hi * shares[:, None], code)  # [steps, C]
        errors = (
            histogram_errors(data, candidates)
            if isinstance(data, Histogram)
            else value_errors(data, candidates)
        )
        best = errors.argmin(0)
        found = Range(full.lo * shares[best], full.hi * shares[best])
        further = best == self.steps - 1
        if self.steps > 1 and rounds > 1 and further.any():
            counted = isinstance(data, Histogram)
            rest = Histogram(*(field[further] for field in data)) if counted else data[further]
            smaller = self._search(Range(found.lo[further], found.hi[further]), rest, code, rounds - 1)
            found.lo[further], found.hi[further] = smaller
        return found


def value_errors(x: Tensor, candidates: Grid) -> Tensor:
    """Sum of squared errors of each row of ``x`` [C, N] on each of K grids a row ([K, C]); [K, C], float64."""
    errors = torch.zeros(candidates.scale.shape, dtype=torch.float64, device=x.device)
    chunk = CPU_CHUNK if x.device.type == "cpu" else DEVICE_CHUNK
    height = max(1, min(len(x), chunk // max(1, x.shape[1])))
    for start in range(0, len(x), height):
        rows = slice(start, start + height)
        for part in x[rows].split(max(1, chunk // height), dim=1):
            values = part.to(compute_dtype(x.dtype))
            for step in range(len(errors)):
                scale, zero_point = (v[step, rows, None] for v in (candidates.scale, candidates.zero_point))
                snapped = snap(values, scale, zero_point, candidates.code)
                error = torch.linalg.vector_norm(snapped.sub_(values), dim=1)
                errors[step, rows] += error.double().square_()
    return errors


def histogram_errors(histogram: Histogram, candidates: Grid) -> Tensor:
    """The same from a histogram, with the values of a bin spread evenly over it; [K, C], float64."""
    errors = torch.zeros(candidates.scale.shape, dtype=torch.float64, device=histogram.counts.device)
    for row, (counts, edges) in enumerate(zip(histogram.counts, bin_edges(histogram), strict=True)):
        counts = counts.double()
        middle = len(counts) // 2
        counts[middle - 1 : middle + 1] = 0  # nearly all of these are zeros, which are exact
        used = counts.nonzero()
        if len(used) == 0:
            continue
        first, last = int(used[0]), int(used[-1]) + 1
        # Bins end where the data does: values clipped to [0, 6] make a spike at exactly 6.
        ends = torch.minimum(torch.maximum(edges[first : last + 1], histogram.lo[row]), histogram.hi[row])
        scale, zero_point = (one[:, row, None].double() for one in (candidates.scale, candidates.zero_point))
        grids = replace(candidates, scale=scale, zero_point=zero_point)  # [K, 1]
        mean = _mean_errors(ends, grids) if grids.code.is_integer else _middle_errors(ends, grids)
        errors[:, row] = mean @ counts[first:last]
    return errors


def _mean_errors(edges: Tensor, grids: Grid) -> Tensor:
    """Mean squared error of numbers spread evenly between neighbouring edges ([E]) on integer grids; [K, E - 1].

    Where x rounds to n steps of s, the error is ``(x - n s)^2``, and its integral from 0 to x is ``F(x) = n s^3 / 12 +
    (x - n s)^3 / 3``: all complete cells, and a part of the last. Clamping n extends the first and last cell to
    infinity, so the formula covers clipping too.
    """
    steps = steps_of(edges, grids.scale, grids.zero_point, grids.code)
    # In place: a new tensor of this size costs more than the sum.
    error = (steps * grids.scale).neg_().add_(edges)
    squared = error.square()
    integral = steps.mul_(grids.scale**3 / 12).add_(error.mul_(squared), alpha=1 / 3)
    width = edges.diff()
    mean = integral.diff(dim=1).div_(width.clamp(min=torch.finfo(width.dtype).tiny))
    wide = width > 0
    return mean if wide.all() else torch.where(wide, mean, squared[:, 1:])


def _middle_errors(edges: Tensor, grids: Grid) -> Tensor:
    """The squared error in the middle between neighbouring edges; [K, E - 1]. Exact enough for 8-bit floats."""
    middle = ((edges[1:] + edges[:-1]) / 2).expand(len(grids.scale), -1)
    return (snap(middle, grids.scale, grids.zero_point, grids.code) - middle).square_()
