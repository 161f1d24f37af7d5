"""GPTQ: columns are rounded one after the other, and later columns compensate for the error of each.

Frantar et al., "GPTQ" (arXiv 2210.17323). With H the second moments of the inputs and U the upper Cholesky factor of
H⁻¹, column j is rounded to q and every later column k gets ``w_k -= (w_j - q_j) / U_jj * U_jk``.

Two steps come first. The range of each group is searched (``grid_search``): an error e of column j costs
``e² / U_jj²`` after later columns have compensated for it, which is less than the ``e² H_jj`` of an error that stays.
Then the target is moved: the layers before this one are compressed, so its inputs x differ from the float model's
inputs f. The layer should still compute W f, and the weights that come closest to it from x are
``W + W (Σ (f - x) xᵀ) (Σ x xᵀ)⁻¹``. GPTAQ's asymmetric term (arXiv 2504.02692) has the same aim; this is plain least
squares. ``follow`` is the fraction of the move that is made.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.config.llm.methods import GptqSettings
from sparsebit.errors import SparsebitError
from sparsebit.llm.methods.grid_search import search_grid
from sparsebit.llm.methods.masks import Sparsity, keep_largest
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.solver import Solved, WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import Grid

logger = logging.getLogger(__name__)

BLOCK = 64  # columns between two updates of all later columns
RETRIES = 4  # at least; a small damping is raised until it is half of the mean


@METHODS.register("gptq")
class Gptq(GptqSettings):
    """The method; its settings are documented where they are declared."""

    needs_data = True

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """The weight on its grid, each column rounded after compensating for the errors of earlier ones."""
        weight = weight.float()
        if statistics is None or not statistics.tokens:
            return Rtn(steps=self.steps).solve(weight, None, spec)
        if spec.sparsity is not None:
            spec.sparsity.require_fits(weight.shape[1])
        gram, shift = statistics.mean_gram(), statistics.mean_shift()
        dead = gram.diagonal() <= 0
        target = weight.masked_fill(dead, 0.0)
        if shift is not None and self.follow:
            target = move_target(target, gram, shift, self.follow, self.follow_damping)
        elimination = eliminate(gram, self.damping, act_order=self.act_order, sparsity=spec.sparsity)
        grid = None
        if spec.code is not None:
            grid = search_grid(target, elimination.cost(), spec, steps=self.steps)
        columns = solve_columns(target, elimination, grid, spec.sparsity)
        raised = elimination.damping != self.damping
        remark = f"damping raised to {elimination.damping:g}: H had no inverse" if raised else ""
        return Solved(columns.weight, grid, columns.latent, remark, columns.kept)


def factorize(gram: Tensor, damping: float) -> tuple[Tensor, float]:
    """The lower Cholesky factor of ``gram``, damped until it is invertible, and the damping used.

    Channels that are zero for all tokens get the mean of the others.
    """
    mean = gram.diagonal().mean().clamp(min=1e-30)
    tries = 0
    while tries <= RETRIES or damping < 0.5:
        tries += 1
        damped = gram.clone()
        damped.diagonal().add_(damping * mean)
        damped.diagonal().masked_fill_(gram.diagonal() <= 0, float(mean))
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            if tries > 1:
                logger.warning(
                    "the second moments of some inputs have no inverse; damping raised to %g", damping
                )
            return factor, damping
        damping *= 10
    raise SparsebitError(
        "the second moments of a layer's inputs have no inverse",
        got=f"damping up to {damping / 10:g}",
        hint="use more, or more varied, calibration data",
    )


class Elimination(NamedTuple):
    """The order in which columns are rounded, and how each affects the later ones.

    Attributes:
        order: [in], the columns in rounding order.
        upper: [in, in], the upper Cholesky factor U of the inverse of H, in that order.
        damping: the damping used.
    """

    order: Tensor
    upper: Tensor
    damping: float

    def cost(self) -> Tensor:
        """[in]: the cost of a column's squared error after correction, ``1 / U_jj²``."""
        return torch.empty_like(self.upper[0]).scatter_(0, self.order, self.upper.diagonal().pow(-2))


def eliminate(gram: Tensor, damping: float, *, act_order: bool, sparsity: Sparsity | None) -> Elimination:
    """The order of the columns and the factor for it; with N:M sparsity, M neighbours stay together."""
    size = sparsity.size if sparsity is not None and sparsity.size is not None else 1
    # Without N:M, every block of columns loses the same fraction, so no block may hold only the strongest ones.
    sorted_first = act_order and (sparsity is None or sparsity.size is not None)
    order = _order(gram.diagonal(), size) if sorted_first else torch.arange(len(gram), device=gram.device)
    # With the columns in reverse, H = L Lᵀ; back in their order L is upper triangular, and its inverse is U.
    reverse = order.flip(0)
    factor, damping = factorize(gram.index_select(0, reverse).index_select(1, reverse), damping)
    return Elimination(order, invert_lower(factor).flip(0, 1), damping)


def invert_lower(factor: Tensor) -> Tensor:
    """The inverse of a lower triangular matrix, by halves: most of the work is in products, which are fast."""
    if len(factor) <= BLOCK:
        inverse: Tensor = torch.linalg.solve_triangular(
            factor, torch.eye(len(factor)).to(factor), upper=False
        )
        return inverse
    half = len(factor) // 2
    first, second = invert_lower(factor[:half, :half]), invert_lower(factor[half:, half:])
    inverse = torch.zeros_like(factor)
    inverse[:half, :half], inverse[half:, half:] = first, second
    inverse[half:, :half] = second @ (factor[half:, :half] @ first).neg_()
    return inverse


def move_target(weight: Tensor, gram: Tensor, shift: Tensor, strength: float, damping: float) -> Tensor:
    """``W + strength * W shift (gram + damping)⁻¹``: weights for the actual inputs.

    ``gram`` is the mean of x xᵀ, ``shift`` that of (f - x) xᵀ, with f the input in the float model.
    """
    factor, _ = factorize(gram, damping)
    few = len(weight) < len(gram)  # as few right-hand sides as possible
    moved = torch.cholesky_solve((weight @ shift if few else shift).T, factor).T
    return torch.add(weight, moved if few else weight @ moved, alpha=strength)


class Columns(NamedTuple):
    """A solved weight [out, in], its values before rounding, and the mask of values that may be nonzero."""

    weight: Tensor
    latent: Tensor
    kept: Tensor | None


def solve_columns(
    weight: Tensor, elimination: Elimination, grid: Grid | None, sparsity: Sparsity | None = None
) -> Columns:
    """Solve ``weight`` [out, in] column by column: rounded if there is a ``grid``, pruned if there is a sparsity.

    Later columns compensate for a pruned value as for a rounded one. Values to prune are chosen as in SparseGPT
    (Frantar and Alistarh, arXiv 2301.00774), by ``w² / U_jj²`` of the weight as updated so far: for each block of
    columns, or for each M neighbours.
    """
    size = sparsity.size if sparsity is not None and sparsity.size is not None else 1
    order, upper, _ = elimination
    pivots = upper.diagonal()[:, None]
    upper = upper / pivots
    left = weight.T.contiguous()[order]  # [in, out]: a column of the weight is a row in memory
    groups = None if grid is None else GroupRows(grid, len(weight))
    group_of = (order // (len(left) // (1 if groups is None else groups.count))).tolist()
    done, losses = torch.empty_like(left), torch.empty_like(left[:BLOCK])
    kept = None if sparsity is None else torch.ones_like(left, dtype=torch.bool)
    width = BLOCK - BLOCK % size
    # All row views at once: each step of the loop takes microseconds, as long as creating a view.
    columns, results, lost = left.unbind(), done.unbind(), losses.unbind()
    for start in range(0, len(left), width):
        end = min(start + width, len(left))
        inside = upper[start:end, start:end]
        for index in range(start, end):
            if sparsity is not None and kept is not None and (index - start) % (sparsity.size or width) == 0:
                until = end if sparsity.size is None else index + size
                scores = (left[index:until] / pivots[index:until]).square_()
                kept[index:until] = _keep_columns(scores, sparsity)
            column, chosen, place = columns[index], results[index], index - start
            if groups is None:
                chosen.copy_(column)
            else:
                groups.snap(column, group_of[index], out=chosen)
            if kept is not None:
                chosen.mul_(kept[index])
            loss = torch.sub(column, chosen, out=lost[place])
            left[index + 1 : end].addr_(inside[place, place + 1 :], loss, alpha=-1)
        left[end:].addmm_(upper[start:end, end:].T, losses[: end - start], alpha=-1)
    back = torch.argsort(order)
    weight, latent = done[back].T.contiguous(), left[back].T.contiguous()
    return Columns(weight, latent, None if kept is None else kept[back].T.contiguous())


def _keep_columns(scores: Tensor, sparsity: Sparsity) -> Tensor:
    """The mask of kept weights for scores [columns, out]: N of every M in a row, or a fraction of them all."""
    if sparsity.size is None:
        return keep_largest(scores.reshape(1, -1), sparsity).view_as(scores)
    return keep_largest(scores.T, sparsity).T


class GroupRows:
    """The grid of a weight [rows, in] by group, stored so that the values of a column are contiguous."""

    def __init__(self, grid: Grid, rows: int) -> None:
        self._code = grid.code
        scales, zero_points = (
            values.float().reshape(rows, -1).T.contiguous() for values in (grid.scale, grid.zero_point)
        )
        self._scales = scales.unbind()
        self._lows, self._highs = ((end - zero_points).unbind() for end in (grid.code.low, grid.code.high))
        self.count = len(scales)

    def snap(self, column: Tensor, group: int, out: Tensor) -> None:
        """Write a column [rows], rounded to its grid, into ``out``."""
        torch.div(column, self._scales[group], out=out)
        torch.clamp(self._code.round_(out), self._lows[group], self._highs[group], out=out)
        if not self._code.is_integer:
            out.copy_(self._code.nearest(out))
        out.mul_(self._scales[group])


def _order(driven: Tensor, size: int) -> Tensor:
    """Channels with the largest inputs first; ``size`` neighbours stay together."""
    by_group = driven.reshape(-1, size)
    groups = torch.argsort(by_group.sum(1), descending=True, stable=True)
    return torch.arange(len(driven), device=driven.device).reshape(-1, size)[groups].flatten()
