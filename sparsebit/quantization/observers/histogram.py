"""A histogram that grows without loss, and the base of observers that differ only in how they read it.

Row c covers ``[-2^e, 2^e)`` with ``2 * bins`` bins of width ``2^e / bins``, where e is the smallest exponent that
covers the data seen so far. When a larger value comes, e grows, and because widths are powers of two every old bin lies
inside exactly one new bin: counts are moved without being split. Dividing by the width and rounding down are exact in
floating point too, so the state depends only on the set of values. Order, batch size and merging do not change a bit of
it. (Only a negative value so small that dividing it underflows, below 2^-126 bins, counts as zero.)

Between half and all of the bins on the longer side are in use: the resolution is at least the largest value divided by
``bins / 2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.config.quantization.plugins import HistogramSettings
from sparsebit.numerics import CodeType
from sparsebit.numerics.snapping import compute_dtype
from sparsebit.quantization.observers.base import (
    Observer,
    Range,
    extremes,
    is_free_to_ask,
    measure_whole,
    no_range,
)

# Rows of zeros, and of numbers so small that the reciprocal of a bin would overflow in float32, cover this.
SMALLEST_EXPONENT = -100

# Elements binned at a time. On a CPU the intermediate values should stay in the cache.
CPU_CHUNK, DEVICE_CHUNK = 2**16, 2**23
MOST_BINS_AT_A_TIME = 2**21  # so that row * bins + bin is exact in float32
MOST_BINS_OF_HISTC = 2**15  # the square of an index stays inside int32, whatever the kernel computes with
MOST_BINS_OF_INT16 = 2**15
BLOCK_BYTES = 2**26  # of the histograms of a tensor that is there at once, such as a weight with many groups


class Histogram(NamedTuple):
    """The count of each bin for each row, and the exact extremes."""

    counts: Tensor  # [C, 2 * bins], int64; column j counts floor(x / width) = j - bins
    exponent: Tensor  # [C], int32; the row covers [-2^exponent, 2^exponent)
    lo: Tensor  # [C], smallest value seen; +inf before any
    hi: Tensor  # [C], largest value seen; -inf before any


def grow(histogram: Histogram, exponent: Tensor) -> Histogram:
    """The same data on a wider range; ``exponent`` [C] is never smaller than the histogram's."""
    if is_free_to_ask(exponent) and torch.equal(exponent, histogram.exponent):
        return histogram
    # At most nearly all bits of an int64: a longer shift is undefined.
    shift = (exponent - histogram.exponent).clamp(max=62)
    bins = histogram.counts.shape[1] // 2
    signed = torch.arange(-bins, bins, device=exponent.device)
    place = (signed >> shift[:, None]) + bins  # shifting right rounds down, as floor does
    counts = torch.zeros_like(histogram.counts).scatter_add_(1, place, histogram.counts)
    return histogram._replace(counts=counts, exponent=exponent)


def bin_edges(histogram: Histogram) -> Tensor:
    """The edges of the bins, [C, 2 * bins + 1], float64."""
    bins = histogram.counts.shape[1] // 2
    signed = torch.arange(-bins, bins + 1, dtype=torch.float64, device=histogram.counts.device)
    return signed * bin_width(histogram)[:, None]


def bin_width(histogram: Histogram) -> Tensor:
    """The width of the bins of each row, [C], float64."""
    bins = histogram.counts.shape[1] // 2
    return _power_of_two(histogram.exponent, torch.float64) / bins


def _count(x: Tensor, exponent: Tensor, counts: Tensor, *, finite: bool) -> Tensor:
    """``counts`` with the values of ``x`` [C, N] added, which the range covers."""
    bins = counts.shape[1] // 2
    per_width = _power_of_two(bins.bit_length() - 1 - exponent, compute_dtype(x.dtype))[:, None]
    chunk = CPU_CHUNK if x.device.type == "cpu" else DEVICE_CHUNK
    most = (MOST_BINS_OF_HISTC if x.is_cuda else MOST_BINS_AT_A_TIME) // (2 * bins)
    height = min(max(1, chunk // x.shape[1]), most, len(x))
    offset = torch.arange(bins, height * 2 * bins, 2 * bins, dtype=per_width.dtype, device=x.device)[:, None]
    counts = counts.clone()
    for rows, factor, into in zip(
        x.split(height), per_width.split(height), counts.split(height), strict=True
    ):
        for part in rows.split(max(1, chunk // height), dim=1):
            # Multiplying by a power of two and rounding down are exact; only then is anything added.
            index = torch.mul(part, factor).floor_()
            if not finite:  # NaN and infinity have no bin; they count as zero, and the extremes tell of them
                index.nan_to_num_(0, 0, 0)
            index.add_(offset[: len(rows)])
            into += _tally(index.flatten(), into.numel()).view(into.shape)
    return counts


def _tally(index: Tensor, size: int) -> Tensor:
    """The count of each of 0, 1, ... ``size - 1`` in ``index``."""
    # On CUDA bincount queues up at a spike: 17 times slower than histc on half zeros. Neither depends on the order of
    # threads, as they count in integers, but torch refuses histc where it was told to be deterministic.
    if index.is_cuda and size <= MOST_BINS_OF_HISTC and not torch.are_deterministic_algorithms_enabled():
        return torch.histc(index.to(torch.int32), bins=size, min=0, max=size)
    # bincount looks for the smallest and the largest index first, which is faster the narrower they are.
    narrow = torch.int16 if size <= MOST_BINS_OF_INT16 and not index.is_cuda else torch.int32
    return torch.bincount(index.to(narrow), minlength=size)


def _power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ldexp(torch.ones_like(exponent, dtype=dtype), exponent)


@dataclass(frozen=True, kw_only=True)
class HistogramObserver(HistogramSettings, Observer[Histogram]):
    """Collects a histogram of ``bins`` bins to each side of zero; subclasses derive a range from it.

    It takes 16 bytes per bin and row: 32 KiB for a tensor with one range.
    """

    def init(self, x: Tensor) -> Histogram:
        """No data, for rows like those of ``x`` [C, N]."""
        counts = torch.zeros(len(x), 2 * self.bins, dtype=torch.int64, device=x.device)
        exponent = torch.full((len(x),), SMALLEST_EXPONENT, dtype=torch.int32, device=x.device)
        return Histogram(counts, exponent, *no_range(x))

    def update(self, state: Histogram, x: Tensor) -> Histogram:
        """Add the values of ``x`` [C, N]."""
        if x.numel() == 0:
            return state
        x = x.detach()
        lo, hi = extremes(x)
        largest = torch.maximum(hi, -lo)
        finite = is_free_to_ask(x) and float(largest.amax()) < torch.inf
        if not finite:
            # Beside NaN or infinity the other values still need bins; the extremes make the histogram an error later.
            largest = largest.where(largest.isfinite(), torch.finfo(largest.dtype).max)
        exponent = torch.frexp(largest.clamp_(min=2.0 ** (SMALLEST_EXPONENT - 1))).exponent
        exponent = torch.maximum(state.exponent, exponent)
        counts = _count(x, exponent, grow(state, exponent).counts, finite=finite)
        return Histogram(counts, exponent, torch.minimum(state.lo, lo), torch.maximum(state.hi, hi))

    def merge(self, a: Histogram, b: Histogram) -> Histogram:
        """The histogram of all data of both, exactly."""
        exponent = torch.maximum(a.exponent, b.exponent)
        counts = grow(a, exponent).counts + grow(b, exponent).counts
        return Histogram(counts, exponent, torch.minimum(a.lo, b.lo), torch.maximum(a.hi, b.hi))

    def observe(self, x: Tensor, code: CodeType) -> Range:
        """The ranges of a complete tensor [C, N], in blocks of rows, so that memory stays bounded."""
        most = max(1, BLOCK_BYTES // (16 * self.bins))
        found = [self.finish(measure_whole(self, rows), code) for rows in x.split(most)]
        return found[0] if len(found) == 1 else Range(*(torch.cat(ends) for ends in zip(*found, strict=True)))
