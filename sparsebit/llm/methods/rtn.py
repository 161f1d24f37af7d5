"""Round to nearest: every weight to the nearest number of its grid, with or without a search for the range."""

from __future__ import annotations

from torch import Tensor

from sparsebit.config.llm.methods import RtnSettings
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.solver import SOLVERS, Solved, WeightSpec, output_loss
from sparsebit.llm.weights.statistics import InputStatistics


@SOLVERS.register("rtn")
class Rtn(RtnSettings):
    """The method; its settings are documented where they are declared."""

    needs_data = False
    follow = 0.0

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """Every number to the nearest one of its grid."""
        gram = None if statistics is None or not statistics.tokens else statistics.mean_gram()
        grid = search_grid(weight, None if gram is None else gram.diagonal(), spec, steps=self.steps)
        snapped = grid.snap(weight.float())
        return Solved(snapped, grid, output_loss(weight.float(), snapped, gram), latent=weight.float())
