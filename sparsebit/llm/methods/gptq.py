"""GPTQ: columns are rounded one after the other, and what a column loses is made up for by those still to come.

Frantar et al., "GPTQ" (arXiv 2210.17323). With H the second moments of the inputs and U the upper Cholesky factor of
H⁻¹, column j is rounded to q and every later column k gets ``w_k -= (w_j - q_j) / U_jj * U_jk``.

Two things are done before. The range of each group is searched for (``grid_search``), and the target is moved: the
inputs x of a layer are not those of the float model, f, because the layers before it are compressed already. The layer
should still give W f, and the weights that come closest to it from x are ``W (Σ f xᵀ) (Σ x xᵀ)⁻¹``. This is the aim of
GPTAQ's asymmetric term (arXiv 2504.02692), as plain least squares. ``follow`` says how much of that move is made.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from sparsebit.config.llm.methods import GptqSettings
from sparsebit.errors import SparsebitError
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import SOLVERS, Solved, WeightSpec, output_loss
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import Grid
from sparsebit.numerics.snapping import snap

logger = logging.getLogger(__name__)

BLOCK = 64  # columns between two updates of all that follow
RETRIES = 4


@SOLVERS.register("gptq")
class Gptq(GptqSettings):
    """The method; its settings are documented where they are declared."""

    needs_data = True

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """The weight on its grid, each column rounded in view of what the earlier ones lost."""
        weight = weight.float()
        if statistics is None or not statistics.tokens:
            solved = Rtn(steps=self.steps).solve(weight, None, spec)
            return solved._replace(remark="no token reached it: rounded to nearest")
        gram, cross = statistics.mean_gram(), statistics.mean_cross()
        dead = gram.diagonal() <= 0
        target = weight.masked_fill(dead, 0.0)
        if cross is not None and self.follow:
            target = move_target(target, gram, cross, self.follow, self.follow_damping)
        grid = search_grid(target, gram.diagonal(), spec, steps=self.steps)
        found, latent, damping = solve_columns(target, gram, grid, self.damping, act_order=self.act_order)
        remark = "" if damping == self.damping else f"damping raised to {damping:g}: H had no inverse"
        return Solved(found, grid, output_loss(weight, found, gram), latent, remark)


def move_target(weight: Tensor, gram: Tensor, cross: Tensor, strength: float, damping: float) -> Tensor:
    """``W + strength * W (cross - gram) (gram + damping)⁻¹``: weights for the inputs that really come.

    ``gram`` is the mean of x xᵀ, ``cross`` that of f xᵀ, with f the input in the float model.
    """
    damped, _ = damp(gram, damping)
    shift: Tensor = torch.linalg.solve(damped, (cross - gram).T).T
    return weight + strength * (weight @ shift)


def damp(gram: Tensor, damping: float) -> tuple[Tensor, float]:
    """``gram`` with a diagonal that makes it invertible, and the damping that took.

    Channels that no token drives get the mean of the others, so that they neither gain nor lose.
    """
    mean = gram.diagonal().mean().clamp(min=1e-30)
    for _ in range(RETRIES + 1):
        damped = gram.clone()
        damped.diagonal().add_(damping * mean)
        damped.diagonal().masked_fill_(gram.diagonal() <= 0, float(mean))
        _, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            return damped, damping
        logger.warning("the second moments have no inverse at damping %g; trying %g", damping, damping * 10)
        damping *= 10
    raise SparsebitError(
        "the second moments of a layer's inputs have no inverse",
        got=f"damping up to {damping / 10:g}",
        hint="more calibration data, or data that is not all alike",
    )


def solve_columns(
    weight: Tensor, gram: Tensor, grid: Grid, damping: float, *, act_order: bool
) -> tuple[Tensor, Tensor, float]:
    """``weight`` [out, in] on ``grid``, column by column; what each number was before rounding; the damping it took."""
    damped, damping = damp(gram, damping)
    order = torch.argsort(damped.diagonal(), descending=True, stable=True)
    if not act_order:
        order = order.sort().values
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped[order][:, order]))
    upper = torch.linalg.cholesky(inverse, upper=True)
    scale, zero_point = (
        values.float().expand_as(weight)[:, order].T.contiguous() for values in grid.spread(weight.shape)
    )
    left = weight[:, order].T.contiguous()  # [in, out]: a column of the weight is a row in memory
    done = torch.empty_like(left)
    for start in range(0, len(left), BLOCK):
        end = min(start + BLOCK, len(left))
        losses = torch.empty_like(left[start:end])
        for index in range(start, end):
            column = left[index]
            snapped = snap(column, scale[index], zero_point[index], grid.code)
            done[index] = snapped
            loss = losses[index - start] = (column - snapped) / upper[index, index]
            left[index + 1 : end].addr_(upper[index, index + 1 : end], loss, alpha=-1)
        left[end:].addmm_(upper[start:end, end:].T, losses, alpha=-1)
    result, latent = torch.empty_like(weight), torch.empty_like(weight)
    result[:, order], latent[:, order] = done.T, left.T
    return result, latent, damping
