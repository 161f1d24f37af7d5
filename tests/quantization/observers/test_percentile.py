from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.quantization.observers import Percentile
from sparsebit.quantization.observers.histogram import SMALLEST_EXPONENT
from tests.quantization.observers.data import NAMES, draw, measure


def reference(x: Tensor, alpha: float) -> tuple[float, float]:
    """The definition, by sorting."""
    values = np.sort(x.double().numpy())
    positive, negative = int((values >= 0).sum()), int((values < 0).sum())
    hi = values[max(len(values) - round(positive * alpha), 1) - 1] if positive else 0.0
    lo = values[max(round(negative * alpha), 1) - 1] if negative else 0.0
    return min(float(lo), 0.0), max(float(hi), 0.0)


def check(x: Tensor, alpha: float) -> None:
    bin_width = max(2 * float(x.abs().max()), 2.0**SMALLEST_EXPONENT) / 2048
    lo, hi = measure(Percentile(alpha=alpha), x)
    expected_lo, expected_hi = reference(x, alpha)
    assert float(lo) == pytest.approx(expected_lo, abs=bin_width)
    assert float(hi) == pytest.approx(expected_hi, abs=bin_width)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("alpha", [0.0, 1e-4, 1e-3, 0.05, 0.5])
def test_it_is_the_kth_value_to_a_bin(kind: str, alpha: float) -> None:
    check(draw(kind), alpha)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60), st.floats(0, 0.9))
def test_on_few_values_too(values: list[float], alpha: float) -> None:
    check(torch.tensor(values), alpha)


def test_numbers_too_small_for_bins_of_their_own_share_one() -> None:
    x = torch.tensor([1e-40, 1e-35, 1e-32])
    check(x, 0.5)
    assert float(measure(Percentile(alpha=0.5), x).hi) <= 2.0**SMALLEST_EXPONENT / 2048


def test_nothing_is_clipped_when_the_share_is_less_than_a_value() -> None:
    x = draw("gaussian", 400)
    assert measure(Percentile(), x) == (x.min(), x.max())


def test_outliers_do_not_set_the_range() -> None:
    x = torch.cat([draw("gaussian"), torch.tensor([50.0])])
    assert 3 < float(measure(Percentile(), x).hi) < 3.5
