"""A shrunk graph is an ordinary captured model."""

from __future__ import annotations

import copy

import torch
from torch import nn

from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.shrink import make_plan, shrink_graph
from tests.sparse.zoo import STRUCTURES
from tests.sparse.zoo.checks import relative_error
from tests.sparse.zoo.choose import choose


def halved(name: str) -> tuple[CapturedModule, CapturedModule, tuple[torch.Tensor, ...]]:
    entry = STRUCTURES[name]
    inputs = entry.inputs()
    gm = capture(entry.make(), inputs)
    groups = find_groups(gm)
    return gm, shrink_graph(gm, make_plan(gm, groups, choose(groups, 0.5))), inputs


def test_the_original_is_left_alone_and_nothing_is_shared() -> None:
    gm, small, inputs = halved("residual")
    before = gm(*inputs)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    assert torch.equal(gm(*inputs), before)


def test_it_can_be_trained_copied_and_shrunk_again() -> None:
    _, small, inputs = halved("inverted_residual")
    small.train()
    small(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())
    small.eval()
    groups = find_groups(small)
    smaller = copy.deepcopy(shrink_graph(small, make_plan(small, groups, choose(groups, 0.5))))
    assert smaller.get_submodule("depthwise.0").groups == 6
    assert smaller(*inputs).shape == (2, 5)


def test_layers_know_their_new_sizes() -> None:
    _, small, _ = halved("grouped_conv")
    layer = small.get_submodule("grouped.0")
    assert isinstance(layer, nn.Conv2d)
    assert (layer.in_channels, layer.out_channels, layer.groups) == (16, 16, 4)
    assert layer.weight.shape == (16, 4, 3, 3)
    assert small.get_submodule("grouped.1").num_features == 16


def test_the_batch_stays_free_where_heads_share_a_dim_with_it() -> None:
    gm, small, _ = halved("multihead_attention_with_weights")
    for batch in (1, 3):
        assert small(torch.randn(6, batch, 8, dtype=torch.float64)).shape == (6, batch, 5)
    entry = STRUCTURES["multihead_attention"]
    gm = capture(entry.make(), entry.inputs())
    groups = find_groups(gm)
    for kept in ({}, choose(groups, 0.5)):
        small = shrink_graph(gm, make_plan(gm, groups, kept))
        x = torch.randn(5, 6, 8, dtype=torch.float64)
        one = torch.cat([small(row) for row in x.split(1)])
        assert relative_error(small(x), one) < 1e-12
