"""One NaN or infinity anywhere shows, whatever the type, and nothing else does."""

from __future__ import annotations

import pytest
import torch

from sparsebit.numerics.finite import all_finite, is_finite

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_number_is_found(dtype: torch.dtype, value: float) -> None:
    numbers = torch.ones(3, 5)
    assert is_finite(numbers.to(dtype))
    numbers[1, 2] = value
    assert not is_finite(numbers.to(dtype))


def test_the_largest_numbers_are_finite_also_where_their_sum_is_not() -> None:
    most = torch.finfo(torch.float32).max
    assert is_finite(torch.tensor([most, most, -most]))


def test_masks_may_hold_minus_infinity() -> None:
    mask = torch.tensor([0.0, -torch.inf])
    assert not is_finite(mask) and is_finite(mask, or_masked=True)
    for value in (torch.nan, torch.inf):
        assert not is_finite(torch.tensor([value, -torch.inf]), or_masked=True)


def test_what_holds_no_numbers_is_finite() -> None:
    assert is_finite(torch.empty(0)) and is_finite(torch.ones(2, dtype=torch.int8))
    assert is_finite(torch.full((2,), torch.nan, device="meta"))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_bad_number_among_several_tensors_is_found(value: float) -> None:
    most = torch.finfo(torch.float32).max
    good = [torch.ones(2, 3), torch.tensor(most), torch.tensor([-most], dtype=torch.float64)]
    assert all_finite(good) and all_finite([])
    assert not all_finite([*good, torch.tensor([0.0, value])])
