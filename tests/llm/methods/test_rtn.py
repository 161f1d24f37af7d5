"""Rounding to nearest, and pruning by size or by size times the norm of the input."""

from __future__ import annotations

import torch

from sparsebit.llm.methods.masks import Sparsity
from sparsebit.llm.methods.rtn import Rtn, Wanda
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import CodeType


def test_numbers_go_to_the_nearest_of_the_grid() -> None:
    weight = torch.randn(3, 16)
    solved = Rtn().solve(weight, None, WeightSpec(code=CodeType("uint", 3), group_size=8))
    assert solved.grid is not None
    groups = weight.reshape(-1, 8)
    step = (groups.amax(1).clamp(min=0) - groups.amin(1).clamp(max=0)) / 7
    error = (solved.weight - weight).reshape(-1, 8).abs()
    assert (error <= 0.51 * step[:, None]).all()


def test_wanda_keeps_what_the_paper_keeps_and_magnitude_the_largest() -> None:
    weight, inputs = torch.randn(4, 12), torch.randn(50, 12) * torch.logspace(-2, 2, 12)
    statistics = InputStatistics.empty(12, shift=False)
    statistics.update(inputs)
    spec = WeightSpec(code=None, sparsity=Sparsity(0.5))
    for solver, scores in (
        (Wanda(), weight.abs() * inputs.norm(dim=0)),
        (Rtn(), weight.abs()),
    ):
        solved = solver.solve(weight, statistics, spec)
        wanted = scores >= scores.sort(1, descending=True).values[:, 5:6]
        assert solved.kept is not None and torch.equal(solved.kept, wanted)
        assert torch.equal(solved.weight, weight * wanted) and solved.grid is None


def test_pruned_and_rounded_at_once() -> None:
    spec = WeightSpec(code=CodeType("uint", 4), group_size=8, sparsity=Sparsity(0.5, 2, 4))
    solved = Rtn(steps=8).solve(torch.randn(4, 16) + 0.5, None, spec)
    assert solved.grid is not None and torch.equal(solved.grid.snap(solved.weight), solved.weight)
    assert ((solved.weight != 0).reshape(-1, 4).sum(1) <= 2).all()
