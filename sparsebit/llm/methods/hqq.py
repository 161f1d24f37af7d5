"""HQQ: a grid that fits most weights of a group well, found without data.

Badri and Shaji, "Half-Quadratic Quantization" (2023): the error is measured with an exponent below 1, so that a few
outliers do not set the range. An auxiliary tensor absorbs the outliers; with it fixed, the grid has a closed form. Here
errors are counted in steps of the grid, and the scale is fitted in addition to the zero point, so that grids without
zero points work too. Zero points stay integers, as in files.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sparsebit.config.llm.methods import HqqSettings
from sparsebit.llm.methods.grid_search import keep_cheaper, search_grid
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import Solved, WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import Grid


@METHODS.register("hqq")
class Hqq(HqqSettings):
    """The method; its settings are documented where they are declared."""

    needs_data = False
    follow = 0.0

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """Round every number to the nearest one of a fitted grid, without data."""
        weight = weight.float()
        if spec.code is None:
            return Rtn().solve(weight, None, spec)
        pruned = Rtn().solve(weight, None, replace(spec, code=None)) if spec.sparsity else None
        target = weight if pruned is None else pruned.weight
        grid = self.fit(target, search_grid(target, None, spec, steps=1))
        kept = None if pruned is None else pruned.kept
        return Solved(grid.snap(target), grid, latent=target, kept=kept)

    def fit(self, weight: Tensor, grid: Grid) -> Grid:
        """The best grid of ``rounds`` rounds, for each group separately."""
        shape = (len(grid.scale), -1)
        best, lowest, beta = grid, self._cost(weight, grid), self.beta
        for _ in range(self.rounds):
            levels = grid.steps(weight).reshape(shape)
            positions = grid.positions(weight).reshape(shape)
            wanted = positions - shrink(positions - levels, beta, self.norm)
            zero_point = grid.zero_point
            if not grid.code.symmetric:
                moved = (zero_point + (levels - wanted).mean(1)).round()
                zero_point = moved.clamp(grid.code.low, grid.code.high)
                levels = levels + (grid.zero_point - zero_point)[:, None]
            energy = levels.square().sum(1)
            ratio = (levels * wanted).sum(1) / energy.clamp(min=1e-30)
            ratio = torch.where((energy > 0) & (ratio > 0), ratio, 1.0)
            scale = (grid.scale.float() * ratio).to(grid.scale.dtype)
            grid = replace(grid, scale=torch.where(scale == 0, grid.scale, scale), zero_point=zero_point)
            best, lowest = keep_cheaper(best, lowest, grid, self._cost(weight, grid))
            beta *= self.growth
        return best

    def _cost(self, weight: Tensor, grid: Grid) -> Tensor:
        """``Σ |w - q|^norm`` of each group."""
        error = (weight - grid.snap(weight)).abs_().reshape(len(grid.scale), -1)
        return error.pow_(self.norm).sum(1)


def shrink(error: Tensor, beta: float, norm: float) -> Tensor:
    """The outlier part of ``x``: ``sign(x) max(0, |x| - |x|^(norm - 1) / beta)``.

    Example:
        >>> shrink(torch.tensor([0.01, -2.0]), beta=10.0, norm=1.0)
        tensor([ 0.0000, -1.9000])
    """
    size = error.abs()
    return error.sign() * (size - size.clamp(min=1e-8).pow(norm - 1) / beta).clamp(min=0)
