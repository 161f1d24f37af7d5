"""The range whose grid preserves the data's distribution best: entropy calibration.

S. Migacz, "8-bit inference with TensorRT", GPU Technology Conference 2017. For each threshold T, the histogram clipped
at T (P, with all mass beyond T added to the last bin) is compared with the distribution that the codes can represent
(Q: the mass of each code, spread evenly over the non-empty bins that round to it). The T with the smallest KL(P || Q)
is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.config.quantization.plugins import KLSettings
from sparsebit.numerics import CodeType, choose_grid
from sparsebit.quantization.observers.base import Range, register_observer
from sparsebit.quantization.observers.histogram import Histogram, HistogramObserver, bin_width


@register_observer("kl_histogram")
@dataclass(frozen=True, kw_only=True)
class KLHistogram(KLSettings, HistogramObserver):
    """Entropy calibration on the actual grid of each range, one-sided for data on one side of zero.

    Thresholds are ``candidates`` equal parts of the largest absolute value; a range is ``[-T, T]`` clipped to the data.
    Five points differ from the usual script, each to avoid one of its failures:

    - Values are rounded to codes as the grid rounds them. Merging equal runs of bins instead depends on whether their
      number divides, and jumps between neighbouring thresholds.
    - The bins next to zero are left out on both sides. Zero has its own code, so the spike of a ReLU loses nothing. If
    it were included, spreading it over neighbouring bins would dominate, and the smallest T would be best.
    - Mass beyond T goes to the outermost *non-empty* bin inside: otherwise Q could be zero there, and every T
    infinitely bad. So a spike at the very end, as of a ReLU6, and far outliers do no harm.
    - A threshold must not cost more squared error than none at all. Divergence ignores distances, so if most of the
    mass is in a narrow peak (GELU, softmax), it would clip all large values for a finer resolution of the peak.
    - Of equally good thresholds, the largest is chosen, not the first.

    A step finer than a bin cannot be evaluated; if even the full range has such steps, it is used. It is also used for
    8-bit floats, because the method assumes equal cells.
    """

    def finish(self, state: Histogram, code: CodeType) -> Range:
        """The range of the best threshold."""
        full = Range(state.lo.clamp(max=0), state.hi.clamp(min=0))
        if not code.is_integer:
            return full
        share = torch.arange(self.candidates, 0, -1, device=full.lo.device).to(full.lo) / self.candidates
        best = []
        for counts, width, lo, hi in zip(state.counts, bin_width(state), *full, strict=True):
            threshold = torch.maximum(-lo, hi) * share
            ranges = Range(torch.maximum(lo, -threshold), torch.minimum(hi, threshold))
            divergence = divergences(counts, width, ranges, code)
            # Rounded, so that noise in the last bits does not decide between equal values.
            best.append(threshold[divergence.mul_(1e9).round_().argmin()])
        limit = torch.stack(best)
        return Range(torch.maximum(full.lo, -limit), torch.minimum(full.hi, limit))


def divergences(counts: Tensor, width: Tensor, ranges: Range, code: CodeType) -> Tensor:
    """KL(P || Q) of one row for each of K ranges, of which the first is the full range; infinite if excluded.

    ``counts`` is [2 * bins], ``width`` of the bins [], the ends of ``ranges`` and the result are [K] (float64).
    """
    bins = len(counts) // 2
    density = counts.double()
    density[bins - 1 : bins + 1] = 0
    grids = choose_grid(ranges.lo.double(), ranges.hi.double(), code)
    judged = grids.scale >= width
    if not judged[0] or not density.any():
        return torch.where(torch.arange(len(judged), device=counts.device) == 0, 0.0, torch.inf)
    codes = torch.arange(code.low, code.high + 2, device=counts.device) - grids.zero_point[:, None]
    borders = _column((codes - 0.5) * grids.scale[:, None], width, bins)  # [K, number of codes + 1]
    borders[:, 0], borders[:, -1] = 0, 2 * bins  # the outermost codes also represent everything beyond them
    errors = _squared_errors(counts.double(), width, borders, codes[:, :-1] * grids.scale[:, None])
    judged &= errors <= errors[0]
    start, end = _column(ranges.lo, width, bins), _column(ranges.hi, width, bins)
    divergence = _divergence(density, borders, start, end)
    return torch.where(judged & divergence.isfinite(), divergence, torch.inf)


def _column(x: Tensor, width: Tensor, bins: int) -> Tensor:
    """The first bin whose middle is not below ``x``."""
    return (x / width - 0.5).ceil().add_(bins).clamp_(0, 2 * bins).long()


def _prefix(terms: Tensor) -> Tensor:
    """Sums of the first 0, 1, 2, ... terms: so that the sum over consecutive bins is a difference of two lookups."""
    return torch.cat([terms.new_zeros(1), terms.cumsum(0)])


def _squared_errors(counts: Tensor, width: Tensor, borders: Tensor, values: Tensor) -> Tensor:
    """Squared error of each grid, where bins ``borders[k, n]`` to ``borders[k, n + 1]`` become ``values[k, n]``; [K].

    Bins are represented by their middles. The sum of squares, which is the same for all grids, is omitted.
    """
    middle = (torch.arange(len(counts), device=counts.device) - len(counts) // 2 + 0.5) * width
    mass, moment = _prefix(counts)[borders].diff(dim=1), _prefix(counts * middle)[borders].diff(dim=1)
    return (values * (values * mass - 2 * moment)).sum(1)


def _divergence(counts: Tensor, borders: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """KL(P || Q) for each of K ranges of bins from ``start`` to before ``end``; not finite for a range without mass.

    The bins j of a code, z of them not empty, with mass m together, contribute ``sum of c_j log c_j - m log(m / z)``.
    """
    filled = counts.nonzero().flatten()
    borders = torch.minimum(torch.maximum(borders, start[:, None]), end[:, None])
    mass, used, entropy = (
        _prefix(counts),
        _prefix((counts > 0).long()),
        _prefix(torch.special.xlogy(counts, counts)),
    )
    code_mass = mass[borders].diff(dim=1)
    # The mass in Q of each non-empty bin of a code.
    level = code_mass / used[borders].diff(dim=1).clamp(min=1)
    loss = entropy[end] - entropy[start] - torch.special.xlogy(code_mass, level).sum(1)

    # In P the outermost non-empty bins inside have the mass beyond.
    first, last = filled[used[start].clamp(max=len(filled) - 1)], filled[(used[end] - 1).clamp(min=0)]
    below, above = mass[start], mass[-1] - mass[end]
    below, above = torch.where(first == last, 0.0, below), torch.where(first == last, above + below, above)
    for place, extra in ((first, below), (last, above)):
        code = torch.searchsorted(borders, place[:, None], right=True) - 1
        q = level.gather(1, code.clamp(0, level.shape[1] - 1)).squeeze(1)
        c, p = counts[place], counts[place] + extra
        loss += torch.special.xlogy(p, p / q) - torch.special.xlogy(c, c / q)
    inside = mass[end] - mass[start]
    return torch.log(inside / mass[-1]).add(loss / mass[-1])
