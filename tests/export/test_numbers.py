"""Numbers and quantized values are compared, whatever they are."""

from __future__ import annotations

import numpy as np
import torch

from sparsebit.export.numbers import (
    distance,
    distinct_share,
    relative_error,
    same_numbers,
    unexplained,
)


def test_numbers_are_compared_whatever_they_are() -> None:
    assert relative_error(np.array([1.0, np.inf]), torch.tensor([1.0, torch.inf])) == 0
    assert relative_error(np.array([1.0, 0.0]), torch.tensor([1.0, torch.nan])) == np.inf
    assert relative_error(np.array([1.0, -np.inf]), torch.tensor([1.0, torch.inf])) == np.inf
    assert relative_error(np.array([1.0, np.nan]), torch.tensor([1.0, torch.inf])) == np.inf
    assert relative_error(np.array([1.0, -1e9]), torch.tensor([2.0, -1e9])) == 0.5  # a masked place
    assert relative_error(np.array([2.0, -2e9]), torch.tensor([2.0, -1e9])) == 1
    assert relative_error(np.array([0.0, 5.0]), torch.tensor([0.0, 5.0])) == 0
    assert relative_error(np.zeros(3), torch.zeros(2)) == np.inf
    assert relative_error(np.array([1, 2]), torch.tensor([1, 3])) == 0.5
    assert relative_error(np.array([1e-9]), torch.tensor([2e-9]), smallest=1e-6) < 2e-3
    assert relative_error(np.zeros((2, 0)), torch.zeros(2, 0)) == 0
    assert relative_error(np.array([1 + 1j]), torch.tensor([1 + 1j])) == 0


def test_quantized_values_that_rounding_explains() -> None:
    assert distance([1, 2, 9], [1, 3, 4]) == (2, 5)
    assert unexplained([3, 4, 9], [3.49, 3.49, 20.0], 0.02, (0, 9)) == 0
    assert unexplained([4], [3.3], 0.02, (0, 9)) == 1
    assert distinct_share([0.5, 0.5, 1.0], [True, True, False]) == 0.5


def test_a_float64_weight_may_be_half_a_float32_step_away() -> None:
    wide = torch.tensor([0.1], dtype=torch.float64)
    assert same_numbers(np.float32([0.1]), wide).all() and not same_numbers(np.float32([0.2]), wide).any()
