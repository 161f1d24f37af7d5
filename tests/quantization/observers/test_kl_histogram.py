from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparsebit.numerics import CodeType, choose_grid
from sparsebit.quantization.observers import Histogram, KLHistogram, MinMax, Range
from sparsebit.quantization.observers.histogram import bin_width
from sparsebit.quantization.observers.kl_histogram import divergences
from tests.quantization.observers.data import NAMES, draw, feed, measure, sqnr


def reference(counts: list[int], width: float, lo: float, hi: float, grid: CodeType) -> tuple[float, float]:
    """Divergence and squared error of one range, bin by bin as the definition says."""
    bins = len(counts) // 2
    chosen = choose_grid(torch.tensor([lo]).double(), torch.tensor([hi]).double(), grid)
    scale, zero_point = float(chosen.scale), float(chosen.zero_point)
    code, error = [], 0.0
    for j, count in enumerate(counts):
        middle = (j - bins + 0.5) * width
        code.append(min(max(math.floor(middle / scale + 0.5) + zero_point, grid.low), grid.high))
        error += count * (middle - (code[j] - zero_point) * scale) ** 2
    p = [0.0] * len(counts)
    below = above = 0.0
    for j, count in enumerate(counts):
        middle = (j - bins + 0.5) * width
        if j in (bins - 1, bins):
            continue
        if middle < lo:
            below += count
        elif middle >= hi:
            above += count
        else:
            p[j] = float(count)
    filled = [j for j, mass in enumerate(p) if mass > 0]
    if not filled:
        return math.inf, error
    q = [0.0] * len(counts)
    for value in set(code):
        members = [j for j in filled if code[j] == value]
        for j in members:
            q[j] = sum(p[k] for k in members) / len(members)
    p[filled[0]] += below
    p[filled[-1]] += above
    total_p, total_q = sum(p), sum(q)
    return sum(p[j] / total_p * math.log((p[j] / total_p) / (q[j] / total_q)) for j in filled), error


def check(x: Tensor, grid: CodeType, observer: KLHistogram) -> None:
    state: Histogram = feed(observer, [x.view(1, -1)])
    width = float(bin_width(state))
    full = Range(state.lo.clamp(max=0), state.hi.clamp(min=0))
    share = torch.arange(observer.candidates, 0, -1) / observer.candidates
    threshold = torch.maximum(-full.lo, full.hi) * share
    ranges = Range(torch.maximum(full.lo, -threshold), torch.minimum(full.hi, threshold))
    found = divergences(state.counts[0], bin_width(state)[0], ranges, grid)
    counts = state.counts[0].tolist()
    scales = choose_grid(ranges.lo.double(), ranges.hi.double(), grid).scale
    if scales[0] < width:
        assert found.tolist() == [0.0] + [math.inf] * (observer.candidates - 1)
        return
    expected = [reference(counts, width, float(lo), float(hi), grid) for lo, hi in zip(*ranges, strict=True)]
    limit = expected[0][1]
    for got, (divergence, error), scale in zip(found.tolist(), expected, scales.tolist(), strict=True):
        if scale >= width and abs(error - limit) > 1e-9 * limit:
            assert got == pytest.approx(divergence if error < limit else math.inf, rel=1e-9, abs=1e-12)
    judged = [(round(d, 9), -t) for d, t in zip(found.tolist(), threshold.tolist(), strict=True)]
    best = -min(judged)[1]
    lo, hi = observer.finish(state, grid)
    assert max(-float(lo), float(hi)) == pytest.approx(min(best, float(threshold[0])), rel=1e-6)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("grid", [CodeType.of(3), CodeType.of(4, False), CodeType.of(5), CodeType.of(8)])
def test_it_is_the_slow_reference(kind: str, grid: CodeType) -> None:
    check(draw(kind, 3000), grid, KLHistogram(bins=64, candidates=20))


@pytest.mark.parametrize("grid", [CodeType.of(8), CodeType.of(8, False)])
def test_it_is_the_slow_reference_at_full_size(grid: CodeType) -> None:
    check(draw("relu6"), grid, KLHistogram(candidates=12))
    check(draw("laplace"), grid, KLHistogram(candidates=12))


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("bits", [2, 4, 6, 8, 12, 16])
@pytest.mark.parametrize("symmetric", [True, False])
def test_it_is_never_worse_than_not_clipping(kind: str, bits: int, symmetric: bool) -> None:
    x, grid = draw(kind), CodeType.of(bits, symmetric)
    assert sqnr(x, measure(KLHistogram(), x, grid), grid) > sqnr(x, measure(MinMax(), x), grid) - 0.1


@pytest.mark.parametrize("zeros", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("sixes", [0.001, 0.05, 0.3])
@pytest.mark.parametrize("grid", [CodeType.of(8), CodeType.of(8, False), CodeType.of(4, False)])
def test_spikes_at_zero_and_six_do_not_collapse_it(zeros: float, sixes: float, grid: CodeType) -> None:
    """As in networks with ReLU6: most values are zero, a share is exactly six, the rest lies between."""
    count = 100_000
    inner = (draw("gaussian", count).abs() * 1.5).clamp(max=5.99)
    x = torch.cat(
        [inner, torch.zeros(int(count * zeros / (1 - zeros))), torch.full((int(count * sixes),), 6.0)]
    )
    hi = float(measure(KLHistogram(), x, grid).hi)
    assert hi > (5.5 if sixes > 0.01 else 3.5)


def test_the_threshold_follows_the_data() -> None:
    """Not a constant share of the largest value, whatever comes."""
    shares = {}
    for kind in ("gaussian", "laplace", "relu6", "heavy_tailed"):
        x = draw(kind)
        shares[kind] = float(measure(KLHistogram(), x).hi) / float(x.abs().max())
    assert shares["relu6"] == 1
    assert shares["heavy_tailed"] < 0.5 < shares["laplace"] < shares["gaussian"]


def test_non_negative_data_gets_all_codes_of_an_affine_grid() -> None:
    x = draw("relu")
    lo, hi = measure(KLHistogram(), x, CodeType.of(8, False))
    assert lo == 0
    assert choose_grid(lo, hi, CodeType.of(8, False)).zero_point == 0
    assert 3.8 < float(hi) < float(x.max())


def test_values_on_a_few_points_are_not_clipped() -> None:
    x = torch.arange(-7, 8).repeat(50).float()
    lo, hi = measure(KLHistogram(), x, CodeType.of(4))
    assert (float(lo), float(hi)) == (-7, 7)
