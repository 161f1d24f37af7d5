"""The equations of reconstruction."""

from __future__ import annotations

import pytest
import torch

from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.quantization.algorithms.reconstruction.core import (
    SoftWeights,
    Unit,
    beta_at,
    drop,
    find_units,
    reconstruction_error,
    undecided,
)
from sparsebit.quantization.quantizers.adaround import rectified_sigmoid


def weights() -> list[tuple[torch.Tensor, Grid]]:
    by_row = Layout(kind="channel", axes=(0,))
    return [
        (torch.randn(4, 3, 3, 3), Grid(torch.full((4,), 0.3), torch.zeros(4), CodeType("int", 4), by_row)),
        (torch.randn(5, 6), Grid(torch.rand(5) + 0.2, torch.full((5,), 3.0), CodeType("uint", 3), by_row)),
    ]


def parts(weight: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Scale and zero point that broadcast against the weight, and the ends of the codes."""
    shape = (-1, *[1] * (weight.dim() - 1))
    return grid.scale.view(shape), grid.zero_point.view(shape), grid.code.low, grid.code.high


def test_soft_weights_start_where_the_weights_are() -> None:
    given = weights()
    taken, h = SoftWeights.of(given).soft()
    for (weight, grid), soft in zip(given, taken, strict=True):
        scale, zero_point, low, high = parts(weight, grid)
        clipped = torch.maximum(torch.minimum(weight / scale, high - zero_point), low - zero_point) * scale
        torch.testing.assert_close(soft, clipped, rtol=0, atol=2e-4)
    assert h.numel() == sum(weight.numel() for weight, *_ in given)


def test_in_the_end_soft_and_hard_are_the_same() -> None:
    given = weights()
    soft = SoftWeights.of(given)
    soft.v.data = torch.where(torch.rand_like(soft.v) < 0.5, -20.0, 20.0)
    for (weight, grid), taken, up in zip(given, soft.soft()[0], soft.up(), strict=True):
        scale, zero_point, low, high = parts(weight, grid)
        codes = ((weight / scale).floor() + up + zero_point).clamp(low, high)
        torch.testing.assert_close(taken, (codes - zero_point) * scale)


def test_gradients_reach_v_as_if_each_weight_had_its_own() -> None:
    given = weights()
    soft = SoftWeights.of(given)
    taken, _ = soft.soft()
    sum((w * w).sum() for w in taken).backward()  # type: ignore[union-attr]
    assert soft.v.grad is not None
    start = 0
    for weight, grid in given:
        scale, zero_point, low, high = parts(weight, grid)
        v = soft.v.detach()[start : start + weight.numel()].view(weight.shape).requires_grad_()
        codes = (weight / scale).floor() + rectified_sigmoid(v)
        codes = torch.minimum(torch.maximum(codes, low - zero_point), high - zero_point)
        (codes * scale).square().sum().backward()
        assert v.grad is not None
        torch.testing.assert_close(soft.v.grad[start : start + weight.numel()], v.grad.flatten())
        start += weight.numel()


def test_the_regularizer_is_zero_only_where_all_is_decided() -> None:
    assert undecided(torch.tensor([0.0, 1.0, 1.0]), 2.0) == 0
    assert undecided(torch.tensor([0.5]), 20.0) == 1
    h = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: undecided(h, 3.0), (h,))


def test_beta_falls_in_a_straight_line_after_the_warm_up() -> None:
    assert beta_at(0.19, 0.2) is None
    assert [beta_at(p, 0.2) for p in (0.2, 0.6, 1.0)] == pytest.approx([20.0, 11.0, 2.0])
    assert beta_at(0.0, 0.0) == 20.0


def test_the_error_is_summed_over_channels() -> None:
    result = torch.zeros(2, 3, 4, requires_grad=True)
    other = torch.zeros(5)  # no weight had a part in it
    units = [Unit(torch.tensor(0.5)), Unit(torch.tensor(7.0))]
    assert reconstruction_error([result + 0, other], [torch.ones(2, 3, 4), torch.ones(5)], units) == 6


def test_infinite_numbers_of_a_mask_neither_count_nor_spread() -> None:
    exact = torch.tensor([[-torch.inf, 1.0], [3.0, -torch.inf]])
    (unit,) = find_units([[exact]])
    assert unit.infinite and unit.variance == 1
    result = torch.where(exact.isfinite(), 0.0, exact).requires_grad_()
    error = reconstruction_error([result], [exact], [unit])
    assert error == 2 * (1 + 9) / 4
    (gradient,) = torch.autograd.grad(error, result)
    assert gradient.isfinite().all()
    mixed = drop(torch.full_like(exact, -9.0), exact, 0.5, torch.Generator().manual_seed(0), infinite=True)
    assert ((mixed == -9) | (mixed == exact)).all()


def test_drop_mixes_element_by_element() -> None:
    rounded, exact = torch.zeros(10_000), torch.ones(10_000)
    assert drop(rounded, exact, 0.0, None) is rounded and torch.equal(drop(rounded, exact, 1.0, None), exact)
    mixed = drop(rounded, exact, 0.25, torch.Generator().manual_seed(0))
    assert abs(mixed.mean().item() - 0.25) < 0.02 and set(mixed.unique().tolist()) == {0.0, 1.0}
