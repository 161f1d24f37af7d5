"""Round to nearest: every weight to the nearest number of its grid, with or without a search for the range.

If weights are pruned, the smallest of each row are removed: by magnitude, or by magnitude times the norm of their input
channel, which is Wanda (Sun et al., arXiv 2306.11695).
"""

from __future__ import annotations

from torch import Tensor

from sparsebit.config.llm.methods import RtnSettings, WandaSettings
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.masks import keep_largest
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import Solved, WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics


@METHODS.register("rtn")
class Rtn(RtnSettings):
    """The method; its settings are documented where they are declared."""

    needs_data = False
    follow = 0.0

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """Round every number to the nearest one of its grid; with data, ranges are searched with weights from it."""
        return round_to_nearest(weight.float(), statistics, spec, self.steps, weight.float().square())


@METHODS.register("wanda")
class Wanda(WandaSettings):
    """The method; its settings are documented where they are declared."""

    needs_data = True
    follow = 0.0

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """Round every kept number to the nearest one of its grid."""
        scores = weight.float().square()
        if statistics is not None and statistics.tokens:
            scores *= statistics.mean_gram().diagonal()
        return round_to_nearest(weight.float(), statistics, spec, self.steps, scores)


def round_to_nearest(
    weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec, steps: int, scores: Tensor
) -> Solved:
    """Keep the weights with the highest ``scores`` if there is a sparsity, and round them."""
    target, kept = weight, None
    if spec.sparsity is not None:
        kept = keep_largest(scores, spec.sparsity)
        target = weight * kept
    if spec.code is None:
        return Solved(target, None, latent=target, kept=kept)
    importance = statistics.mean_gram().diagonal() if statistics is not None and statistics.tokens else None
    grid = search_grid(target, importance, spec, steps=steps)
    return Solved(grid.snap(target), grid, latent=target, kept=kept)
