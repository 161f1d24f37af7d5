"""Which groups are found, and why some of them stay whole."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.channels import find_groups
from tests.sparse.zoo import STRUCTURES
from tests.zoo.nets import resnet


def groups_of(name: str, **options: object) -> dict[str, tuple[int, tuple[str, ...]]]:
    entry = STRUCTURES[name]
    groups = find_groups(capture(entry.make(), entry.inputs()), **options)  # type: ignore[arg-type]
    return {group.name: (group.channels, group.producers[1:]) for group in groups.free}


def test_a_residual_stream_is_one_group() -> None:
    found = groups_of("residual")
    assert found["stem.0"] == (8, ("b",))
    assert found["d"] == (16, ("down",)) or found["down"] == (16, ("d",))


def test_heads_are_units_and_key_value_heads_take_their_queries_along() -> None:
    assert groups_of("attention_by_matmul")["q"] == (4, ("k", "v"))
    assert groups_of("grouped_query_attention")["q"] == (4, ("k", "v"))
    assert groups_of("fused_qkv")["qkv"] == (4, ())


def test_dims_of_heads_on_request() -> None:
    found = groups_of("attention_by_matmul", whole_heads=False)
    assert found["q"] == (4, ("k",)) and found["v"] == (4, ())


def test_one_key_head_for_all_queries_leaves_the_dims() -> None:
    found = groups_of("multi_query_attention")
    assert found["q"] == (8, ("k",)) and found["v"] == (8, ())


def test_chunks_that_go_different_ways_are_different_groups() -> None:
    found = groups_of("c2f_chunk")
    assert found["cv1.0"][0] == 8 and found["cv1.0#2"][0] == 8


def test_grouped_convolutions_balance_their_groups() -> None:
    entry = STRUCTURES["grouped_conv"]
    group = find_groups(capture(entry.make(), entry.inputs())).by_name("a.0")
    assert group.blocks is not None
    assert group.blocks.tolist() == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8
    assert {where.rows for where in group.slices if where.rows} == {(0, 8), (8, 16), (16, 24), (24, 32)}


def test_patterns_keep_layers_whole() -> None:
    entry = STRUCTURES["conv_bn_relu"]
    gm = capture(entry.make(), entry.inputs())
    groups = find_groups(gm, keep=["a.*"])
    assert groups.by_name("a.0").frozen == "kept by the pattern 'a.*'"
    assert groups.by_name("b.0").frozen is None
    groups = find_groups(gm, unchanged=["b.*"])
    assert groups.by_name("a.0").frozen == groups.by_name("b.0").frozen == "kept by the pattern 'b.*'"


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.flip(1)


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(Reverse.apply(self.a(x))))  # type: ignore[no-untyped-call]


def test_an_unknown_operator_freezes_and_is_named() -> None:
    groups = find_groups(capture(Unknown(), (torch.randn(2, 4),)))
    reason = groups.by_name("a").frozen
    assert reason is not None and "unknown operator Reverse" in reason and "test_find.py" in reason
    assert groups.by_name("b").frozen is None


def test_shapes_are_required() -> None:
    gm = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(GraphError, match="no shape is recorded"):
        find_groups(gm)


def test_the_hash_names_the_graph() -> None:
    def make(width: int) -> CapturedModule:
        return capture(nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2)), (torch.randn(1, 4),))

    assert graph_digest(make(3)) == graph_digest(make(3)) != graph_digest(make(5))


def test_a_large_net_is_grouped_quickly() -> None:
    gm = capture(resnet.resnet50().eval(), (torch.randn(1, 3, 64, 64),))
    find_groups(gm)
    start = time.process_time()
    groups = find_groups(gm)
    assert time.process_time() - start < 0.5
    assert len(groups.free) == 37
