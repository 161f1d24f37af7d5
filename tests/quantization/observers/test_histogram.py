from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsebit.numerics import CodeType
from sparsebit.quantization.observers import ACIQ, HistogramObserver, KLHistogram, Percentile
from sparsebit.quantization.observers import histogram as module
from sparsebit.quantization.observers.histogram import (
    SMALLEST_EXPONENT,
    Histogram,
    bin_edges,
    bin_width,
    grow,
)
from tests.quantization.observers.data import NAMES, draw

BINS = 64
OBSERVER = Percentile(bins=BINS)


def histogram_of(x: torch.Tensor, bins: int = BINS) -> Histogram:
    observer = Percentile(bins=bins)
    return observer.update(observer.init(x), x)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("shape", [(1, -1), (5, -1), (1000, -1)])
def test_every_value_is_counted_in_its_bin(kind: str, shape: tuple[int, int]) -> None:
    x = draw(kind, 5000).view(shape)
    found = histogram_of(x)
    edges = bin_edges(found)
    for row in range(0, len(x), max(1, len(x) // 10)):
        inside = (edges[row, :-1, None] <= x[row]) & (x[row] < edges[row, 1:, None])
        assert found.counts[row].equal(inside.sum(1))
        assert found.counts[row].sum() == x.shape[1]
    assert found.lo.equal(x.amin(1))
    assert found.hi.equal(x.amax(1))


@given(st.floats(2.0**-90, 2.0**100, width=32))
def test_between_half_and_all_of_a_side_is_used(largest: float) -> None:
    found = histogram_of(torch.tensor([[largest, 0.0]]))
    reach = float(bin_edges(found)[0, -1])
    assert reach / 2 <= largest < reach
    assert reach == 2.0 ** int(found.exponent)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.integers(-1000, 1000).map(lambda n: n / 7), min_size=1, max_size=8),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(-30, 30), min_size=6, max_size=6),
)
def test_growing_loses_nothing(batches: list[list[float]], powers: list[int]) -> None:
    """Batches of very different size in any order: the state of all of them at once."""
    parts = [torch.tensor([batch]) * 2.0**power for batch, power in zip(batches, powers, strict=False)]
    whole = histogram_of(torch.cat(parts, 1))
    for order in (parts, parts[::-1]):
        streamed, merged = OBSERVER.init(order[0]), OBSERVER.init(order[0])
        for part in order:
            streamed = OBSERVER.update(streamed, part)
            merged = OBSERVER.merge(merged, histogram_of(part))
        assert all(a.equal(b) for a, b in zip(whole, streamed, strict=True))
        assert all(a.equal(b) for a, b in zip(whole, merged, strict=True))


def test_rows_grow_by_themselves() -> None:
    found = histogram_of(torch.tensor([[1.0, 0.1], [1.0, 0.1]]))
    grown = OBSERVER.update(found, torch.tensor([[0.5], [100.0]]))
    assert grown.exponent.tolist() == [1, 7]
    assert grown.counts.sum(1).tolist() == [3, 3]
    alone = histogram_of(torch.tensor([[1.0, 0.1, 0.5]]))
    assert grown.counts[0].equal(alone.counts[0])


def test_a_bin_moves_whole() -> None:
    start = OBSERVER.init(torch.zeros(1, 1))
    start = start._replace(counts=torch.arange(2 * BINS)[None])
    grown = grow(start, start.exponent + 1)
    halves = start.counts.view(1, BINS, 2).sum(2)
    assert grown.counts[:, BINS // 2 : BINS // 2 + BINS].equal(halves)
    assert grown.counts.sum() == start.counts.sum()
    far = grow(start, start.exponent + 200)  # everything ends in the two bins at zero
    assert far.counts[0, BINS - 1 : BINS + 1].tolist() == [sum(range(BINS)), sum(range(BINS, 2 * BINS))]
    assert grow(start, start.exponent).counts.equal(start.counts)


def test_zeros_cover_next_to_nothing_and_cost_no_resolution() -> None:
    zeros = histogram_of(torch.zeros(1, 5))
    assert zeros.exponent.tolist() == [SMALLEST_EXPONENT]
    later = OBSERVER.update(zeros, torch.tensor([[3.0]]))
    assert later.counts[0, BINS] == 5
    assert bin_width(later).item() == 4 / BINS


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw("laplace", 9999).view(9, -1)
    expected = histogram_of(x)
    for chunk in (1, 7, 1000, 5000):
        monkeypatch.setattr(module, "CPU_CHUNK", chunk)
        part = x[:2, :50] if chunk == 1 else x
        got, wanted = histogram_of(part), (expected if part is x else None)
        if wanted is None:
            monkeypatch.undo()
            wanted = histogram_of(part)
        assert all(a.equal(b) for a, b in zip(got, wanted, strict=True))


def test_counts_beyond_a_float32_stay_exact() -> None:
    x = torch.zeros(1, 2**20)
    state = histogram_of(x)
    for _ in range(4):
        state = OBSERVER.merge(state, OBSERVER.merge(state, state))
    odd = OBSERVER.update(state, torch.zeros(1, 1))
    assert odd.counts.sum() == 3**4 * 2**20 + 1


@pytest.mark.parametrize("kind", [ACIQ, KLHistogram, Percentile])
def test_many_rows_are_done_in_blocks(kind: type[HistogramObserver], monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight with groups has hundreds of thousands of rows: their histograms together would take gigabytes."""
    observer, x, code = kind(bins=64), torch.randn(10, 50), CodeType()
    expected = observer.finish(observer.update(observer.init(x), x), code)
    monkeypatch.setattr(module, "BLOCK_BYTES", 16 * 64 * 3)
    sizes: list[int] = []
    make = HistogramObserver.init

    def counted(self: HistogramObserver, x: torch.Tensor) -> Histogram:
        sizes.append(len(x))
        return make(self, x)

    monkeypatch.setattr(HistogramObserver, "init", counted)
    for got, wanted in zip(observer.observe(x, code), expected, strict=True):
        assert torch.equal(got, wanted)
    assert sizes == [3, 3, 3, 1]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_large_values_beside_one_that_is_not_finite_have_bins(bad: float) -> None:
    state = histogram_of(torch.tensor([[bad, 300.0, -1e30, 2.0]]))
    assert int(state.counts.sum()) == 4 and not bool(torch.isfinite(state.hi - state.lo).all())
