from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparsebit.numerics import CodeType, choose_grid
from sparsebit.quantization.observers import MSE, MinMax, mse
from tests.quantization.observers.data import NAMES, draw, measure, sqnr

GRIDS = [
    CodeType.of(8),
    CodeType.of(8, False),
    CodeType.of(4),
    CodeType.of(4, False),
    CodeType.of(2),
    CodeType.of(8, True, "fp8_e4m3"),
]


def reference(x: Tensor, grid: CodeType, steps: int = 80) -> np.ndarray[Any, Any]:
    """Every shrunk range tried on every value, one after the other, in float64."""
    lo, hi = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    errors = []
    for step in range(steps):
        share = 1 - 0.01 * step
        chosen = choose_grid(torch.tensor([lo * share]), torch.tensor([hi * share]), grid)
        errors.append(float((chosen.snap(x.double()) - x.double()).square().sum()))
    return np.array(errors)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("grid", GRIDS)
def test_the_search_on_values_is_the_brute_force_one(kind: str, grid: CodeType) -> None:
    x = draw(kind, 5000)
    errors = reference(x, grid)
    if errors.argmin() == 79:
        pytest.skip("the search goes on below")
    found = MSE().observe(x.view(1, -1), grid)
    # Two shares may be equally good up to float32 rounding, so compare what they cost.
    share = float(found.hi / x.max()) if x.max() > 0 else float(found.lo / x.min())
    assert errors[round((1 - share) * 100)] == pytest.approx(errors.min(), rel=1e-5)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("grid", GRIDS)
def test_the_search_on_the_histogram_is_as_good(kind: str, grid: CodeType) -> None:
    x = draw(kind)
    exact, streamed = MSE().observe(x.view(1, -1), grid), measure(MSE(), x, grid)
    assert sqnr(x, streamed, grid) > sqnr(x, exact, grid) - (0.1 if grid.is_integer else 0.3)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("grid", GRIDS)
def test_it_is_never_worse_than_not_clipping(kind: str, grid: CodeType) -> None:
    x = draw(kind)
    unclipped = sqnr(x, measure(MinMax(), x), grid)
    assert sqnr(x, MSE().observe(x.view(1, -1), grid), grid) >= unclipped - 1e-4
    assert sqnr(x, measure(MSE(), x, grid), grid) >= unclipped - 0.1


@pytest.mark.parametrize("grid", [CodeType.of(4), CodeType.of(4, False), CodeType.of(8)])
def test_bins_are_integrated_exactly(grid: CodeType) -> None:
    """The closed form of a bin's error against many values spread evenly over it, clipped ones and spikes included."""
    x = torch.cat(
        [torch.linspace(a, a + 1 / 16, 4001, dtype=torch.float64)[:-1] for a in (0.5, -0.75, 2.0, 1.25)]
    )
    x = torch.cat([x, torch.full((5000,), 3.0, dtype=torch.float64)])[None]
    observer = MSE(bins=64)
    histogram = observer.update(observer.init(x), x)
    shares = torch.linspace(0.2, 1, 20, dtype=torch.float64)[:, None]
    candidates = choose_grid(-0.75 * shares, 3 * shares, grid)
    found, exact = mse.histogram_errors(histogram, candidates), mse.value_errors(x, candidates)
    torch.testing.assert_close(found, exact, rtol=2e-2, atol=1e-3)


def test_the_search_goes_on_where_the_smallest_is_best() -> None:
    x = torch.cat([draw("gaussian"), torch.tensor([100.0, -80.0])])
    grid = CodeType.of(4)
    for found in (MSE().observe(x.view(1, -1), grid), measure(MSE(), x, grid)):
        assert float(found.hi) < 0.21 * 100
    rows = torch.stack([x, x.clamp(-3, 3)])
    together, alone = MSE().observe(rows, grid), MSE().observe(rows[1:], grid)
    assert together.hi[0] < 21
    assert together.hi[1] == alone.hi[0]


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw("laplace", 3000).view(3, -1)
    candidates = choose_grid(
        x.amin(1) * torch.tensor([[1.0], [0.7]]), x.amax(1) * torch.tensor([[1.0], [0.7]]), CodeType.of(4)
    )
    expected = mse.value_errors(x, candidates)
    for chunk in (1, 300, 1000, 2500):
        monkeypatch.setattr(mse, "CPU_CHUNK", chunk)
        torch.testing.assert_close(mse.value_errors(x, candidates), expected, rtol=1e-5, atol=0)
