from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.errors import ConfigError, RegistryError, SparsebitError
from sparsebit.quantization.numerics import GridSpec
from sparsebit.quantization.observers import (
    ACIQ,
    MSE,
    OBSERVERS,
    CalibrationError,
    KLHistogram,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    Range,
    observe,
    register_observer,
)
from sparsebit.quantization.observers.base import extremes


def test_the_names_of_configurations_are_there() -> None:
    assert sorted(OBSERVERS) == ["aciq", "kl_histogram", "minmax", "moving_average", "mse", "percentile"]
    assert OBSERVERS["MINMAX"] is MinMax


def test_observers_of_others_register_and_are_used() -> None:
    @register_observer("median")
    @dataclass(frozen=True)
    class Median(Observer[Range]):
        """The median of the last batch, for the sake of an example."""

        def init(self, x: Tensor) -> Range:
            return Range(x.new_zeros(len(x)), x.new_zeros(len(x)))

        def update(self, state: Range, x: Tensor) -> Range:
            return Range(state.lo, x.median(1).values)

        def merge(self, a: Range, b: Range) -> Range:
            return b

        def finish(self, state: Range, grid: GridSpec) -> Range:
            return state

    try:
        found = observe(OBSERVERS["median"](), torch.tensor([[1.0, 2.0, 9.0]]), GridSpec())
        assert found.hi.tolist() == [2.0]
        with pytest.raises(RegistryError, match="observer 'median' is already taken"):
            register_observer("median")(Median)
    finally:
        OBSERVERS.remove("median")


def test_a_whole_tensor_is_observed_by_the_way_made_for_it() -> None:
    x = torch.tensor([[-1.0, 1.0, 1.0, 1.05]])
    assert observe(MSE(), x, GridSpec(bits=2)) == MSE().observe(x, GridSpec(bits=2))
    assert observe(MinMax(), x, GridSpec()).hi.tolist() == [pytest.approx(1.05)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MovingAverage(ema_ratio=1.0), "0 <= ema_ratio < 1"),
        (lambda: Percentile(alpha=-0.1), "0 <= alpha < 1"),
        (lambda: Percentile(bins=1000), "a power of two from 64 to 8192"),
        (lambda: MSE(steps=0), "steps >= 1"),
        (lambda: MSE(steps=200), "shrink to nothing"),
        (lambda: KLHistogram(candidates=0), "at least 1"),
        (lambda: ACIQ(distribution="gauss"), "gaus or laplace"),  # type: ignore[arg-type]
    ],
)
def test_settings_are_checked(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Percentile().alpha = 0.5  # type: ignore[misc]
    assert ACIQ(distribution="LAPLACE") == ACIQ(distribution="laplace")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 50), (3, 50), (2, 4, 50), (1, 1, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32])
def test_extremes_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    lo, hi = extremes(x)
    assert lo.shape == hi.shape == shape[:-1]
    assert lo.equal(x.amin(-1).to(lo.dtype))
    assert hi.equal(x.amax(-1).to(lo.dtype))


def test_the_error_names_row_and_values() -> None:
    x = torch.ones(3, 2, 4)
    x[1, 1, 2] = torch.nan
    with pytest.raises(CalibrationError) as caught:
        extremes(x)
    assert isinstance(caught.value, SparsebitError)
    assert caught.value.row == 1
    assert str(caught.value) == (
        "row 1 of 3 holds values that are not finite\n"
        "  got:  1 NaN and 0 infinite among 8 values\n"
        "  next: look at the data and the weights; a float16 model may also have overflowed"
    )
