"""Models that compute between blocks, call one again, or have several lists of them, against plain runs of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm import quantize_blocks
from sparsebit.llm.blocks import solve, streams
from sparsebit.llm.blocks.calls import run_model
from sparsebit.llm.blocks.find import find_stacks
from sparsebit.llm.tokens import windows
from tests.llm.models import ROUTES, VOCABULARY, NamesEnds, Plain, Residual, tokens

LENGTH, COUNT = 16, 12  # of a sequence, and sequences: two batches, the second one smaller
CONFIG = {
    "W": {"BIT": 4, "GROUP_SIZE": 32},
    "METHOD": "gptq",
    "CALIBRATION": {"SAMPLES": COUNT, "LENGTH": LENGTH},
}


def weights(model: nn.Module, **settings: Any) -> dict[str, Tensor]:
    made = llm.quantize(model, tokens(), {**CONFIG, **settings}, progress=False)
    return {name: held.numbers() for name, held in made.weights.items()}


def require_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], values) for name, values in wanted.items())


class Outside(NamesEnds, Plain):
    """Residuals between the blocks."""


@pytest.mark.parametrize("method", ["gptq", ["awq", "gptq"], ["gptq", {"tune": {"steps": 2}}], "rtn"])
def test_a_residual_outside_the_blocks_is_the_same_as_one_inside(method: object) -> None:
    outside, inside = Outside(), Residual()
    inside.load_state_dict(outside.state_dict())
    head = {"BIT": 8, "GROUP_SIZE": 32}
    found, wanted = (weights(model, METHOD=method, HEAD=head) for model in (outside, inside))
    if isinstance(method, str) or method[0] == "awq":
        require_equal(found, wanted)
    else:  # tuning follows what a block returns, with or without the residual
        require_equal(
            {name: found[name] for name in found if "blocks" not in name and name != "head.weight"},
            {name: wanted[name] for name in wanted if "blocks" not in name and name != "head.weight"},
        )


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_every_block_is_measured_on_what_reaches_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs of each block's first weights, against complete runs of the model with hooks."""
    model = ROUTES[name]()
    measured: dict[str, Any] = {}
    measure = solve.measure_inputs

    def watched(runs: Any, parameters: Any, stage: Any, *rest: Any, **settings: Any) -> Any:
        found = measure(runs, parameters, stage, *rest, **settings)
        if not any(key.startswith(f"{runs.name}.") for key in measured):
            measured.update({f"{runs.name}.{matrix}": one for matrix, one in found.items()})
        return found

    monkeypatch.setattr(solve, "measure_inputs", watched)
    monkeypatch.setattr(streams, "MOST_BYTES", 20_000)  # so that most of it lies on disk
    made = llm.quantize(model, tokens(), CONFIG, progress=False)
    rows = windows(tokens(), COUNT, LENGTH, 0)
    compressed = copy.deepcopy(model)
    blocks = list(dict.fromkeys(record.name.partition("[")[0] for record in made.records))
    done: list[str] = []
    for key, statistics in measured.items():
        block = next(one for one in made_blocks(model) if key.startswith(f"{one}."))
        with torch.no_grad():
            for weight in [one for one in blocks if any(one.startswith(f"{earlier}.") for earlier in done)]:
                compressed.get_parameter(weight).copy_(made.weights[weight].numbers())
        done.append(block)
        path = key.removesuffix(".weight")
        own, floats = inputs_of(compressed, path, rows), inputs_of(model, path, rows)
        assert statistics.tokens == len(own)
        gram = own.T @ own
        assert torch.allclose(statistics.gram, gram, atol=1e-4 * float(gram.abs().max())), key
        shift = (floats - own).T @ own
        assert torch.allclose(statistics.shift, shift, atol=1e-4 * float(gram.abs().max())), key
    assert set(made_blocks(model)) == set(done)


def made_blocks(model: nn.Module) -> list[str]:
    return [name for stack in find_stacks(model) for name in stack.names]


@torch.no_grad()
def inputs_of(model: nn.Module, path: str, rows: Tensor) -> Tensor:
    """All that a layer is called with, as rows: for one call of the layer after the other."""
    calls: list[list[Tensor]] = []

    def see(module: nn.Module, args: tuple[Any, ...]) -> None:
        calls[-1].append(args[0].reshape(-1, args[0].shape[-1]))

    handle = model.get_submodule(path).register_forward_pre_hook(see)
    for batch in rows.split(8):
        calls.append([])
        run_model(model, batch)
    handle.remove()
    return torch.cat([one for batch in zip(*calls, strict=True) for one in batch])


@pytest.mark.parametrize("name", ["looped", "skips", "t5", "xlm"])
def test_a_run_that_was_stopped_goes_on_to_the_same_result(
    name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"BIT": 8, "GROUP_SIZE": 32}
    whole = weights(ROUTES[name](), HEAD=head)
    left, once = [1], quantize_blocks.solve_block

    def stopped(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return once(*args, **kwargs)

    monkeypatch.setattr(quantize_blocks, "solve_block", stopped)
    settings = {**CONFIG, "HEAD": head}
    with pytest.raises(KeyboardInterrupt):
        llm.quantize(ROUTES[name](), tokens(), settings, folder=tmp_path, progress=False)
    left[0] = 100
    made = llm.quantize(ROUTES[name](), tokens(), settings, folder=tmp_path, progress=False)
    require_equal({key: held.numbers() for key, held in made.weights.items()}, whole)


def test_blocks_that_hand_on_more_than_hidden_states() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(hidden + residual), hidden + residual

    class Handing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Embedding(VOCABULARY, 32), nn.ModuleList(Block() for _ in range(3))

        def forward(self, ids: Tensor) -> Tensor:
            hidden = residual = self.embed(ids)
            for block in self.blocks:
                hidden, residual = block(hidden, residual)
            return hidden + residual

    class Summing(Handing):
        def forward(self, ids: Tensor) -> Tensor:
            hidden = self.embed(ids)
            for block in self.blocks:
                hidden = block(hidden, torch.zeros_like(hidden))[0] + hidden
            return hidden

    torch.manual_seed(0)
    model = Handing()
    found = weights(model)
    assert len(found) == 3
    # The first block gets the embedding twice, so two models agree on the numbers of its second moments.
    other = Summing()
    other.load_state_dict(model.state_dict())
    assert torch.equal(found["blocks.0.linear.weight"], weights(other)["blocks.0.linear.weight"])


def test_an_order_of_calls_that_depends_on_the_data_is_refused() -> None:
    class Skipping(Plain):
        def forward(self, input_ids: Tensor) -> Tensor:
            blocks = self.blocks if len(input_ids) == 1 else self.blocks[:1]
            hidden = self.embed(input_ids)
            for block in blocks:
                hidden = hidden + block(hidden)
            out: Tensor = self.head(hidden)
            return out

    with pytest.raises(SparsebitError, match="calls its blocks in an order that depends on the data"):
        llm.quantize(Skipping(), tokens(), CONFIG, progress=False)
