"""Sums over tokens: the same in one batch and in many."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.weights.statistics import InputStatistics


def test_batches_do_not_matter() -> None:
    x, f = torch.randn(3, 10, 6), torch.randn(3, 10, 6)
    at_once, parts = (InputStatistics.empty(6, shift=True, sizes=True) for _ in range(2))
    at_once.update(x, f)
    parts.update(x[:1], f[:1])
    parts.update(x[1:], f[1:])
    rows, floats = x.reshape(-1, 6), f.reshape(-1, 6)
    for found in (at_once, parts):
        shift = found.mean_shift()
        assert found.tokens == 30 and shift is not None
        assert torch.allclose(found.mean_gram(), rows.T @ rows / 30, atol=1e-5)
        assert torch.allclose(shift, (floats - rows).T @ rows / 30, atol=1e-5)
        assert found.magnitude is not None and found.largest is not None
        assert torch.allclose(found.magnitude, rows.abs().sum(0), atol=1e-4)
        assert torch.equal(found.largest, rows.abs().amax(0))
    assert InputStatistics.empty(6, shift=False).mean_shift() is None


def test_second_moments_in_bfloat16_still_have_an_inverse() -> None:
    torch.manual_seed(0)
    common = 30 * torch.randn(64)  # what all tokens have in common is much larger than what tells them apart
    x = common + torch.randn(2048, 64)
    f = x + 0.1 * torch.randn(2048, 64)
    found, wanted = (InputStatistics.empty(64, shift=True) for _ in range(2))
    found.update(x.view(4, 512, 64), f.view(4, 512, 64), half=True)
    wanted.update(x, f)
    lowest = torch.linalg.eigvalsh(wanted.mean_gram().double())[0]
    assert float(torch.linalg.eigvalsh(found.mean_gram().double())[0] / lowest) == pytest.approx(1, abs=0.05)
    assert torch.allclose(found.mean_gram(), wanted.mean_gram(), rtol=1e-3, atol=0.05)
    moved, shift = found.mean_shift(), wanted.mean_shift()
    assert moved is not None and shift is not None and torch.allclose(moved, shift, atol=0.02)


def test_how_large_inputs_are_is_counted_only_where_it_is_asked_for() -> None:
    found = InputStatistics.empty(6)
    found.update(torch.randn(10, 6))
    assert found.magnitude is None and found.largest is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e25])
@pytest.mark.parametrize("half", [False, True])
def test_inputs_that_are_no_numbers_are_named(value: float, half: bool) -> None:
    found = InputStatistics.empty(6)
    found.update(torch.randn(10, 6), half=half)
    found.require_finite("down_proj.weight")
    bad = torch.randn(10, 6)
    bad[3, 4] = value
    found.update(bad, half=half)
    with pytest.raises(SparsebitError, match=r"NaN or infinite(.|\n)*the inputs of down_proj\.weight"):
        found.require_finite("down_proj.weight")
