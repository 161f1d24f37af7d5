"""Every structure of the pruning zoo, at several ratios, against an oracle that knows nothing of the method."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch

from sparsebit.analysis.node_cost import cost
from sparsebit.errors import GraphError, SpecializationWarning
from sparsebit.graph import CapturedModule
from sparsebit.sparse.channels import ChannelGroups, find_groups, mask_tensors
from sparsebit.sparse.shrink import make_plan, shrink_graph, shrink_module
from tests.sparse.zoo import STRUCTURES
from tests.sparse.zoo.checks import (
    captured,
    error_against_original,
    recorded_shapes_hold,
    relative_error,
    shrunk,
)
from tests.sparse.zoo.choose import choose
from tests.sparse.zoo.oracle import mask_original
from tests.zoo.entry import outputs_of


@functools.cache
def prepared(name: str) -> tuple[Any, CapturedModule, ChannelGroups, tuple[Any, ...]]:
    entry = STRUCTURES[name]
    model, inputs = entry.make(), entry.inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecializationWarning)  # a loop over steps has as many as recorded
        gm = captured(model, inputs)
    return model, gm, find_groups(gm), inputs


def test_there_are_enough_structures() -> None:
    assert len(STRUCTURES) >= 60


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_shrunk_equals_masked_original(name: str, ratio: float) -> None:
    _, gm, groups, inputs = prepared(name)
    small, _ = shrunk(gm, groups, ratio)
    assert error_against_original(gm, small, inputs) < 1e-12
    if ratio == 0.5:
        recorded_shapes_hold(small, inputs)


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_every_group_can_go_without_the_others(name: str) -> None:
    _, gm, groups, inputs = prepared(name)
    for group, kept in choose(groups, 0.5).items():
        if name == "projected_lstm" and groups.by_name(group).channels == 12:
            kept[:8] = True  # what is projected must stay wider than the projection
        small = shrink_graph(gm, make_plan(gm, groups, {group: kept}))
        assert error_against_original(gm, small, inputs) < 1e-12, group


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_only_what_must_stays_whole(name: str) -> None:
    _, _, groups, _ = prepared(name)
    entry = STRUCTURES[name]
    for group in groups.frozen():
        assert group.frozen is not None
        if "output of the model" in group.frozen:
            continue
        expected = next((text for layer, text in entry.frozen.items() if group.name.startswith(layer)), None)
        assert expected is not None and expected in group.frozen, str(group)
    for layer in entry.frozen:
        assert any(group.name.startswith(layer) for group in groups.frozen()), layer


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_half_the_units_leave_a_quarter_of_the_work(name: str) -> None:
    _, gm, groups, _ = prepared(name)
    small, _ = shrunk(gm, groups, 0.5)
    frozen = any("output of the model" not in str(group.frozen) for group in groups.frozen())
    assert cost(small).macs < (0.75 if frozen else 0.62) * cost(gm).macs


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_masks_zero_what_shrinking_removes(name: str) -> None:
    _, gm, groups, _ = prepared(name)
    kept = choose(groups, 0.5)
    small = shrink_graph(gm, make_plan(gm, groups, kept))
    _, want = mask_original(gm, small)
    got = mask_tensors(groups, kept)
    for parameter, mask in want.items():
        found = got.get(groups.trace.canonical(parameter), torch.ones_like(mask))
        assert torch.equal(found, mask), parameter


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_own_class_is_shrunk_or_refused(name: str) -> None:
    model, gm, groups, inputs = prepared(name)
    small, plan = shrunk(gm, groups, 0.5)
    if not STRUCTURES[name].module:
        with pytest.raises(
            GraphError, match=r"own forward cannot run with fewer channels[\s\S]*use the shrunk graph"
        ):
            shrink_module(model, plan, small, inputs)
        return
    own = shrink_module(model, plan, small, inputs)
    assert type(own) is type(model)
    with torch.no_grad():
        for left, right in zip(outputs_of(own(*inputs)), outputs_of(small(*inputs)), strict=True):
            assert relative_error(left, right) < 1e-9


@pytest.mark.parametrize(
    "name",
    [
        "attention_by_matmul",
        "fused_qkv",
        "grouped_query_attention",
        "multi_query_attention",
        "multihead_attention",
    ],
)
def test_dims_of_heads_can_go_instead_of_heads(name: str) -> None:
    _, gm, _, inputs = prepared(name)
    groups = find_groups(gm, whole_heads=False)
    small, plan = shrunk(gm, groups, 0.5)
    assert error_against_original(gm, small, inputs) < 1e-12
    assert cost(small).macs < 0.62 * cost(gm).macs
    assert plan.edits
