"""Lookups: which argument is the table, and running with another one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.ops.sampling import integer, one_node, parameter, real, sample


@pytest.mark.parametrize("swapped", [True, False])
def test_the_table_is_the_weight_in_either_order(swapped: bool) -> None:
    ids, table = integer(2, 5), parameter(7, 4)
    case = sample(torch.embedding, table, ids) if swapped else sample(F.embedding, ids, table)
    graph = one_node(case)
    assert graph.call.weight_name in ("weight0", "weight1") and graph.call.activations == (graph.nodes[0],)


def test_an_embedding_runs_with_another_table() -> None:
    layer, ids, table = nn.Embedding(7, 4).double(), integer(2, 5), real(7, 4)
    spec = one_node(sample(layer, ids)).call.spec
    assert spec.with_weight is not None
    assert torch.equal(spec.with_weight(layer, table, ids), table[ids])
    assert spec.weight_axes == (1, 0) and spec.channel_axis == -1  # features are the output channels


def test_one_hot_vectors_are_integers() -> None:
    call = one_node(sample(F.one_hot, integer(3), 9)).call
    assert call.spec.integers and call.weight_name is None
