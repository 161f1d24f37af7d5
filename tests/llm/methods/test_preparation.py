"""Methods that act before: every registered one leaves what the block computes as it was."""

from __future__ import annotations

import pytest
import torch

from sparsebit.llm.blocks.find import find_stack
from sparsebit.llm.blocks.route import Route
from sparsebit.llm.methods import METHODS
from sparsebit.llm.methods.preparation import by_source
from sparsebit.llm.methods.solver import WeightSpec
from tests.llm.models import DECODERS, stream_of, tokens


@pytest.mark.parametrize("name", ["awq", "smoothquant"])  # rotate changes the basis: its own test
def test_the_float_model_stays_the_same(name: str) -> None:
    model, ids = DECODERS["llama"]().requires_grad_(False), tokens(24)[None]
    wanted, stack = model(ids).logits, find_stack(model)
    before = stack.modules[0].self_attn.q_proj.weight.clone()
    spec_of = lambda key: WeightSpec() if "proj" in key else None  # noqa: E731
    runs = stream_of(model, ids).runs(stack.modules[0])
    METHODS[name]().start(model, Route.unseen(stack.names))(runs, spec_of)
    assert not torch.equal(stack.modules[0].self_attn.q_proj.weight, before)
    assert torch.allclose(model(ids).logits, wanted, atol=1e-4)


def test_channels_that_share_a_source_are_averaged() -> None:
    found = by_source(torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.tensor([0, 1, 0, 1]))
    assert found.tolist() == [2.0, 4.0]
