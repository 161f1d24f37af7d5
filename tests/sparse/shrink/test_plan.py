"""The plan is data, and can be applied to a graph, a state dict or a module."""

from __future__ import annotations

import pytest
import torch

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.shrink import apply_plan, make_plan, shrink_graph, shrink_state_dict
from tests.sparse.zoo import STRUCTURES
from tests.sparse.zoo.choose import choose

NAMES = [
    "grouped_conv",
    "c2f_chunk",
    "multihead_attention",
    "tied_embedding",
    "option_a_shortcut",
    "projected_lstm",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_fits_graph_state_dict_and_module(name: str) -> None:
    entry = STRUCTURES[name]
    model, inputs = entry.make(), entry.inputs()
    gm = capture(model, inputs)
    groups = find_groups(gm)
    plan = make_plan(gm, groups, choose(groups, 0.5))
    small = shrink_graph(gm, plan)
    state = shrink_state_dict(model.state_dict(), plan)
    assert {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in small.state_dict().items()
    }
    apply_plan(model, plan).load_state_dict(small.state_dict())


def test_another_graph_is_refused() -> None:
    first, second = STRUCTURES["mlp"], STRUCTURES["conv3d"]
    gm = capture(first.make(), first.inputs())
    groups = find_groups(gm)
    plan = make_plan(gm, groups, choose(groups, 0.5))
    with pytest.raises(GraphError, match="made for another graph"):
        shrink_graph(capture(second.make(), second.inputs()), plan)


def test_keeping_everything_changes_nothing() -> None:
    entry = STRUCTURES["fused_qkv"]
    gm = capture(entry.make(), entry.inputs())
    groups = find_groups(gm)
    plan = make_plan(gm, groups, {})
    assert not plan.index and not plan.edits and not plan.modules
    small = shrink_graph(gm, plan)
    assert torch.equal(small(*entry.inputs()), gm(*entry.inputs()))
