"""The range with the lowest cost for each group, weighted by the mean square of each input channel.

At 3 bits the choice of the range matters more than the choice of the rounding. The cost of a range is the sum of
``h_i (w_i - q_i)²`` over its group. For rounding to nearest, h_i is the mean square of input channel i; for GPTQ it is
what remains of that after later channels compensate for the error.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.numerics import CodeType, Grid, choose_grid

SMALLEST = 0.35  # the smallest range tried, as a fraction of the full range


def search_grid(weight: Tensor, importance: Tensor | None, spec: WeightSpec, *, steps: int = 24) -> Grid:
    """The best of ``steps`` ranges for every group, from the full range down to a third of it.

    Args:
        weight: [out, in].
        importance: [in], the weight of each input channel in the cost; equal if omitted.
        spec: type, group size and scale dtype of the grid.
        steps: how many ranges are tried; 1 uses the full range.

    Example:
        >>> w = torch.tensor([[0.1, -0.2, 0.3, 8.0]])
        >>> spec = WeightSpec(group_size=None)
        >>> tried = search_grid(w, torch.tensor([1.0, 1.0, 1.0, 1e-6]), spec)
        >>> bool(tried.scale.abs() < search_grid(w, None, spec, steps=1).scale.abs())
        True
    """
    weight = weight.float()
    code = spec.code
    assert code is not None
    layout = spec.layout(weight.shape)
    size = weight.shape[1] if layout.group_size is None else layout.group_size
    rows = weight.reshape(-1, size)
    lo, hi = rows.amin(1), rows.amax(1)
    cost_of = None if importance is None else importance.float().to(weight.device).reshape(1, -1)
    best: Grid | None = None
    lowest = torch.empty(0)
    for part in torch.linspace(1.0, SMALLEST, steps).tolist() if steps > 1 else [1.0]:
        for low, high in _ends(lo * part, hi * part, code, tried=steps > 1):
            grid = choose_grid(low, high, code, layout, scale_dtype=spec.scale_dtype)
            error = grid.snap(weight).sub_(weight).square_()
            cost = (error if cost_of is None else error.mul_(cost_of)).reshape(-1, size).sum(1)
            if best is None:
                best, lowest = grid, cost
                continue
            best, lowest = keep_cheaper(best, lowest, grid, cost)
    assert best is not None
    return best


def keep_cheaper(best: Grid, lowest: Tensor, grid: Grid, cost: Tensor) -> tuple[Grid, Tensor]:
    """The cheaper of two grids for each group, and its cost [groups]."""
    better = cost < lowest
    scale = torch.where(better, grid.scale, best.scale)
    zero_point = torch.where(better, grid.zero_point, best.zero_point)
    return replace(best, scale=scale, zero_point=zero_point), torch.where(better, cost, lowest)


def _ends(lo: Tensor, hi: Tensor, code: CodeType, *, tried: bool) -> list[tuple[Tensor, Tensor]]:
    """The ranges to try at one size; with a signed scale, either end may be the one that is a step shorter."""
    if code.kind == "full" and tried:
        wider = -code.low / code.high
        return [(lo, hi), (-hi * wider, -lo * wider)]
    return [(lo, hi)]
