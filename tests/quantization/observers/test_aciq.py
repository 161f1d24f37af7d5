from __future__ import annotations

import numpy as np
import pytest
import torch

from sparsebit.numerics import CodeType
from sparsebit.quantization.observers import ACIQ, Range
from sparsebit.quantization.observers.aciq import Distribution, optimal_clip
from tests.quantization.observers.data import draw, measure, sqnr

# Banner et al. 2019, section 3 and their code: multiples of sigma and of b for 2 to 8 bits.
GAUSSIAN = {2: 1.71, 3: 2.15, 4: 2.55, 5: 2.93, 6: 3.28, 7: 3.61, 8: 3.92}
LAPLACE = {2: 2.83, 3: 3.89, 4: 5.03, 5: 6.20, 6: 7.41, 7: 8.64, 8: 9.89}


def test_the_clips_are_the_published_ones() -> None:
    for bits, clip in GAUSSIAN.items():
        assert optimal_clip("gaus", bits) == pytest.approx(clip, abs=0.02)
    for bits, clip in LAPLACE.items():
        assert optimal_clip("laplace", bits) == pytest.approx(clip, abs=0.02)
    assert optimal_clip("gaus", 9) == pytest.approx(4.2, abs=0.03)  # one side of a distribution, at 8 bits
    assert optimal_clip("laplace", 9) == pytest.approx(11.16, abs=0.02)


@pytest.mark.parametrize("distribution", ["gaus", "laplace"])
@pytest.mark.parametrize("bits", range(2, 10))
def test_the_clips_are_where_the_cost_is_least(distribution: Distribution, bits: int) -> None:
    x = np.linspace(0, 40, 400_001)
    density = np.exp(-x) / 2 if distribution == "laplace" else np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    best = optimal_clip(distribution, bits)

    def cost(clip: float) -> float:
        beyond = np.maximum(x - clip, 0) ** 2 * density
        return float(clip**2 / (3 * 4**bits) + 2 * beyond.sum() * (x[1] - x[0]))

    assert cost(best) <= min(cost(best * 0.99), cost(best * 1.01))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_the_spread_comes_from_the_data(bits: int, factor: float) -> None:
    x = factor * draw("gaussian")
    lo, hi = measure(ACIQ(), x, CodeType.of(bits))
    assert float(hi) == pytest.approx(optimal_clip("gaus", bits) * factor, rel=0.02)
    assert float(lo) == pytest.approx(-optimal_clip("gaus", bits) * factor, rel=0.02)
    x = factor * draw("laplace")
    hi = measure(ACIQ(distribution="laplace"), x, CodeType.of(bits)).hi
    assert float(hi) == pytest.approx(min(optimal_clip("laplace", bits) * factor, float(x.max())), rel=0.02)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9])
def test_after_a_relu_the_spread_is_that_before_it(bits: int, zeros: float) -> None:
    """However many zeros there are; and an affine grid has a bit more for the half that is left."""
    x = draw("gaussian").abs()
    x[: int(zeros * len(x))] = 0
    lo, hi = measure(ACIQ(), x, CodeType.of(bits, False))
    assert lo == 0
    assert float(hi) == pytest.approx(min(optimal_clip("gaus", bits + 1), float(x.max())), rel=0.02)
    assert float(measure(ACIQ(), x, CodeType.of(bits, True)).hi) == pytest.approx(
        min(optimal_clip("gaus", bits), float(x.max())), rel=0.02
    )
    mirrored = measure(ACIQ(), -x, CodeType.of(bits, False))
    assert float(mirrored.lo) == pytest.approx(-float(hi), rel=1e-3)


@pytest.mark.parametrize("kind", ["gaussian", "relu", "shifted"])
@pytest.mark.parametrize(
    "grid", [CodeType.of(4), CodeType.of(4, False), CodeType.of(8), CodeType.of(8, False)]
)
def test_on_gaussian_data_it_is_nearly_the_best_range(kind: str, grid: CodeType) -> None:
    x = draw(kind)
    lo, hi = x.min().clamp(max=0), x.max()
    best = max(sqnr(x, Range(lo[None] * s, hi[None] * s), grid) for s in np.linspace(0.3, 1, 29))
    assert sqnr(x, measure(ACIQ(), x, grid), grid) > best - 0.6


def test_a_shifted_distribution_is_clipped_around_its_mean() -> None:
    x = draw("gaussian") + 3
    lo, hi = measure(ACIQ(), x, CodeType.of(4, False))
    assert lo == torch.zeros(1)
    assert float(hi) == pytest.approx(3 + optimal_clip("gaus", 4), rel=0.02)
