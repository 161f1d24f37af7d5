from __future__ import annotations

import torch
from torch import fx, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.edit import (
    own_module,
    remove_tensor,
    replace_value,
    set_module,
    set_tensor,
    shallow_copy,
)


def test_a_copied_module_shares_its_tensors_and_nothing_else() -> None:
    module = nn.BatchNorm2d(3)
    twin = shallow_copy(module)
    assert twin.weight is module.weight
    assert twin.running_mean is module.running_mean
    twin.weight = nn.Parameter(torch.zeros(3))
    twin.register_forward_hook(lambda *_: None)
    twin.eps = 1.0
    assert module.weight.tolist() == [1, 1, 1]
    assert not module._forward_hooks
    assert module.eps == 1e-5


def test_setting_a_module_leaves_the_users_containers_alone() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    graph = fx.Graph()
    graph.output(graph.call_module("0.0", (graph.placeholder("x"),)))
    gm = fx.GraphModule({"0": model[0], "0.0": model[0][0]}, graph)
    new = nn.Linear(2, 2)
    set_module(gm, "0.0", new)
    assert gm.get_submodule("0.0") is new
    assert model[0][0] is not new


def test_setting_a_tensor_of_a_leaf_leaves_the_users_module_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    gm = capture(model, (torch.zeros(1, 2),))
    before = model[0].weight
    set_tensor(gm, "0.weight", torch.zeros(2, 2), like=before)
    assert model[0].weight is before
    assert gm.get_submodule("0").weight.eq(0).all()
    remove_tensor(gm, "0.bias")
    assert model[0].bias is not None


def test_a_buffer_stays_a_buffer() -> None:
    gm = fx.GraphModule(nn.Module(), fx.Graph())
    gm.register_buffer("table", torch.zeros(2), persistent=False)
    set_tensor(gm, "table", torch.ones(2), like=gm.table)
    set_tensor(gm, "other", torch.ones(2), like=gm.table)
    assert dict(gm.named_buffers()).keys() == {"table", "other"}
    assert list(gm.state_dict()) == ["other"]
    assert own_module(gm, "") is gm


def test_a_constant_replaces_a_node_in_nested_arguments() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_method("size", (x, 0))
    out = graph.call_method("reshape", (x, (size, -1)))
    graph.output(out)
    replace_value(size, (1, 2))
    assert out.args == (x, ((1, 2), -1))
