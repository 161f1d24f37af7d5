"""Signed rounding: no weight leaves its neighbours, and the choice among them is close to the best there is."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.signround import SignRound
from sparsebit.llm.methods.solver import SolvedMatrix, WeightSpec
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics import CodeType


def test_it_comes_close_to_the_best_rounding_there_is() -> None:
    torch.manual_seed(0)
    block = nn.Linear(8, 6, bias=False).requires_grad_(False)
    inputs = torch.randn(256, 8) @ torch.randn(8, 8)
    hidden = list(inputs.split(64))
    weight, targets = block.weight.clone(), [block(x) for x in hidden]
    spec = WeightSpec(code=CodeType("int", 4), group_size=None, scale_dtype=torch.float32)
    solved = Rtn().solve(weight, None, spec)
    block.weight.copy_(solved.weight)
    (found,) = SignRound(steps=200, scale_reach=0.0).tune(
        BlockRuns(block, [BlockCall((None,), {}, 0)] * 4, hidden),
        targets,
        [SolvedMatrix(Matrix("weight"), solved, 256, 0.0)],
    )
    assert solved.grid is not None and found.solved.grid is not None
    assert torch.equal(found.solved.grid.scale, solved.grid.scale)
    wanted = torch.cat(targets)
    share = 1 / wanted.square().sum(1)  # errors are relative to the size of each token's output
    positions = solved.grid.positions(weight)
    chosen = found.solved.grid.positions(found.solved.weight).round()
    assert ((chosen - positions).abs() <= 1.001).all()
    ups = torch.tensor(list(itertools.product((0.0, 1.0), repeat=8)))
    for row, scale in enumerate(solved.grid.scale):

        def errors(steps: torch.Tensor, row: int = row, scale: torch.Tensor = scale) -> torch.Tensor:
            outputs = inputs @ (steps.clamp(-8, 7) * scale).T
            return ((outputs - wanted[:, row : row + 1]).square() * share[:, None]).mean(0)

        every = errors(positions[row].floor() + ups).sort().values
        (got,) = errors(chosen[row : row + 1])
        (nearest,) = errors(positions[row : row + 1].round())
        assert got <= every[25] and got <= nearest  # among the best tenth of all 256
