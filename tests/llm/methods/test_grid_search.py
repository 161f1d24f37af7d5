"""The search for ranges: never worse than the full range, and better where channels count differently."""

from __future__ import annotations

import pytest
import torch

from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.numerics import CodeType


@pytest.mark.parametrize("code", ["uint3", "int3", "int3_full", "nf4", "fp8_e4m3"])
def test_each_group_gets_the_best_of_all_ranges(code: str) -> None:
    torch.manual_seed(0)
    weight, importance = torch.randn(6, 32), torch.logspace(-2, 1, 32)
    spec = WeightSpec(code=CodeType.parse(code), group_size=16)

    def cost(steps: int) -> torch.Tensor:
        error = search_grid(weight, importance, spec, steps=steps).snap(weight) - weight
        return (error.square() * importance).reshape(-1, 16).sum(1)

    assert (cost(24) <= cost(1) + 1e-6).all()
    assert cost(24).sum() < 0.999 * cost(1).sum()


def test_a_signed_scale_counts_from_either_end() -> None:
    weight = torch.tensor([[-1.0, 0.9, 0.9, 0.9]])
    spec = WeightSpec(code=CodeType("full", 2), group_size=None, scale_dtype=torch.float32)
    importance = torch.tensor([0.0, 1.0, 1.0, 1.0])
    grid = search_grid(weight, importance, spec, steps=40)
    assert float(grid.scale) < 0  # so that two steps reach the positive numbers
    assert (grid.snap(weight)[0, 1:] - 0.9).abs().max() < 0.05


def test_a_signed_scale_reaches_the_extreme_from_its_short_end_too() -> None:
    weight = torch.tensor([[3.0, 1.0, -2.0, 2.0]])  # multiples of 1, of which there are three above zero
    spec = WeightSpec(code=CodeType("full", 3), group_size=None, scale_dtype=torch.float32)
    grid = search_grid(weight, None, spec)
    assert float(grid.scale) == 1.0 and torch.equal(grid.snap(weight), weight)
