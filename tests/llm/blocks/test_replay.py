"""Results of a block's products that come back in its next run."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.blocks.measure import measure_inputs
from sparsebit.llm.blocks.replay import Replay
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.blocks.stages import find_stages

CALL = BlockCall((None,), {}, 0)


class Chain(nn.Module):
    """Three products in a row; ``in_place`` writes into the result of the first."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8).requires_grad_(False) for _ in range(3))
        self.in_place, self.products = in_place, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        x = x.relu_() if self.in_place else x.relu()
        return self.layers[2](self.layers[1](x).relu())  # type: ignore[no-any-return]


class Count(torch.overrides.TorchFunctionMode):
    """How many products are really computed."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func is F.linear
        return func(*args, **(kwargs or {}))


def count_products(block: Chain, replay: Replay | None, x: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Measure stage after stage, changing each weight after it was measured, and run the block at the end."""
    parameters = {name: one for name, one in block.named_parameters() if one.dim() == 2}
    stages = find_stages(BlockRuns(block, [CALL], [x[:1]]), parameters)
    runs = BlockRuns(block, [CALL, CALL], [x, 2 * x])
    with torch.no_grad(), Count() as counted:
        for stage in stages:
            measure_inputs(runs, parameters, stage, None, replay)
            parameters[stage.groups[0].leader.name].mul_(0.5)  # stands for solving it
        outputs = run_block(runs, replay)[0]
    return counted.products, outputs[1]


def test_all_runs_together_compute_each_product_once() -> None:
    torch.manual_seed(0)
    x, blocks = torch.randn(2, 5, 8), [Chain(), Chain()]
    blocks[1].load_state_dict(blocks[0].state_dict())
    count, found = count_products(blocks[0], Replay(blocks[0], 2), x)
    plain, wanted = count_products(blocks[1], None, x)
    assert count == 2 * 3 and plain == 2 * (0 + 1 + 2 + 3)
    assert torch.equal(found, wanted) and torch.equal(found, blocks[0](2 * x))


def test_a_result_that_was_written_into_is_computed_again() -> None:
    torch.manual_seed(0)
    x, block = torch.randn(2, 5, 8), Chain(in_place=True)
    count, found = count_products(block, Replay(block, 2), x)
    assert count > 2 * 3 and torch.equal(found, block(2 * x))


def test_results_beyond_the_limit_are_computed_again() -> None:
    torch.manual_seed(0)
    x, block = torch.randn(2, 5, 8), Chain()
    count, found = count_products(block, Replay(block, 2, limit=x.nbytes), x)
    assert 2 * 3 < count < 2 * 6 and torch.equal(found, block(2 * x))


def test_what_comes_behind_weights_to_be_solved_is_not_kept() -> None:
    replay, x, weight = Replay(nn.Identity(), 1), torch.randn(3, 4), torch.randn(4, 4)
    with replay.run(0) as run:
        first = F.linear(x, weight)
        run.stop()
        F.linear(first, weight)
    with replay.run(0):
        assert F.linear(x, weight) is first
        assert not torch.equal(F.linear(first, 2 * weight), F.linear(first, weight))


class Nested(nn.Module):
    """A module of two products and an activation, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.layers = nn.ModuleList([nn.Linear(8, 8), inner, nn.Linear(8, 8)]).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_modules_that_came_to_their_end_are_not_run_again() -> None:
    torch.manual_seed(0)
    block, x, calls = Nested(), torch.randn(2, 5, 8), list[str]()
    activation: Any = block.get_submodule("layers.1.1")

    def own(value: torch.Tensor) -> torch.Tensor:
        calls.append("silu")
        return F.silu(value)

    activation.forward = own  # of this object alone
    replay = Replay(block, 1)
    runs = BlockRuns(block, [CALL], [x])
    for last in (1, 2, 3):
        with torch.no_grad(), replay.run(0) as run:
            value = x
            for number, layer in enumerate(block.layers):
                if number == last:
                    run.stop()
                value = layer(value)
    assert calls == ["silu", "silu"]  # once behind the first stop, once before the second
    assert torch.equal(run_block(runs, replay)[0][0], block(x)) and activation.forward is own
    assert all("forward" not in vars(one) for one in block.modules() if one is not activation)
