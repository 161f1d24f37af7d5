"""One block solved: each stage behind what the stages before it became, weights of one input together."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.solve import run_block, solve_block, solve_without_data
from sparsebit.llm.methods.gptq import Gptq
from sparsebit.llm.methods.rtn import Rtn
from sparsebit.llm.methods.signround import SignRound
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.llm.methods.tune import Tune
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.numerics import CodeType

SPEC = WeightSpec(code=CodeType("uint", 3), group_size=8)
CALL = BlockCall((None,), {}, 0)


class Pair(nn.Module):
    """Two weights that read one tensor, and one that reads their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16, bias=False).requires_grad_(False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.a(x).relu() + self.b(x))  # type: ignore[no-any-return]


def test_stages_follow_each_other_and_one_input_is_solved_together() -> None:
    torch.manual_seed(0)
    block, x = Pair(), torch.randn(4, 32, 16)
    weights = {name: one.clone() for name, one in block.named_parameters()}
    done, floats, _ = solve_block(BlockRuns(block, [CALL], [x]), None, lambda name: SPEC, Gptq(follow=0.0))
    found = {one.matrix.name: one.solved for one in done}

    def alone(name: str, inputs: torch.Tensor) -> torch.Tensor:
        statistics = InputStatistics.empty(16, shift=False)
        statistics.update(inputs)
        return Gptq(follow=0.0).solve(weights[name], statistics, SPEC).weight

    assert floats is None
    for name in ("a.weight", "b.weight"):
        assert torch.allclose(found[name].weight, alone(name, x), atol=1e-5)
    inner = block.a(x).relu() + block.b(x)  # with the weights that were solved
    assert torch.allclose(found["c.weight"].weight, alone("c.weight", inner), atol=1e-5)
    for name, one in block.named_parameters():
        grid = found[name].grid
        assert torch.equal(one, found[name].weight) and grid is not None
        assert len(grid.scale) == 32 and torch.equal(grid.snap(one), one)


def test_outputs_of_the_float_model_come_back() -> None:
    block, x, f = Pair(), torch.randn(2, 8, 16), torch.randn(2, 8, 16)
    wanted = block(f)
    _, floats, _ = solve_block(
        BlockRuns(block, [CALL], [x]), BlockRuns(block, [CALL], [f]), lambda name: SPEC, Gptq()
    )
    assert floats is not None and torch.equal(floats[0][0], wanted)


class Routed(nn.Module):
    """A layer for the tokens whose first number is positive, and one for all tokens after it."""

    def __init__(self) -> None:
        super().__init__()
        self.expert, self.after = (nn.Linear(16, 16).requires_grad_(False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken, found = x[..., 0] > 0, x.clone()
        if taken.any():
            found[taken] = self.expert(x[taken])
        return self.after(found)  # type: ignore[no-any-return]


def test_a_batch_that_does_not_reach_a_layer_is_run_on_what_the_later_ones_became() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(2, 8, 16), torch.randn(2, 8, 16)]
    batches[0][..., 0].abs_()  # every token reaches the layer; then none does, in the float model two
    batches[1][..., 0] = -1.0
    floats = [batches[0], batches[1].clone()]
    floats[1][0, :2, 0] = 1.0
    block = Routed()
    runs, others = (BlockRuns(block, [CALL, CALL], one) for one in (batches, floats))
    done = solve_block(runs, others, lambda name: SPEC if name.endswith("weight") else None, Gptq())
    assert [one.tokens for one in done.matrices] == [16, 32]
    for found, x in zip(run_block(runs, done.replay)[0], batches, strict=True):
        assert torch.equal(found, block(x))
    # Tuners learn from the other batches, also where nothing else is learned.
    assert done.floats is not None
    for solved in (done.matrices, done.matrices[:1]):
        for tuner in (SignRound(steps=4), Tune(steps=4, norm_lr=0.0)):
            remarks = [one.solved.remark for one in tuner.tune(runs, done.floats[0], solved)]
            assert len(remarks) == len(solved) and all("tun" in one for one in remarks)


def test_stacked_experts_are_solved_without_data() -> None:
    class Experts(nn.Module):
        def __init__(self, is_transposed: bool) -> None:
            super().__init__()
            self.is_transposed = is_transposed
            self.down = nn.Parameter(torch.randn(3, 16, 8), requires_grad=False)

    for transposed in (False, True):
        block = Experts(transposed)
        done = solve_without_data(BlockRuns(block, [], []), lambda name: SPEC, Rtn())
        assert [str(one.matrix) for one in done] == ["down[0]", "down[1]", "down[2]"]
        for one, weight in zip(done, block.down, strict=True):
            view = weight.T if transposed else weight
            assert torch.equal(one.solved.weight, view)
            assert one.solved.grid is not None and torch.equal(one.solved.grid.snap(view), view)
