from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import GraphModule, Node

from sparsebit.graph.capture import ModeConstant, capture
from sparsebit.graph.effects import assign, is_effect, overwritten, read_flag, written_by, written_tensors


def trace(forward: object) -> GraphModule:
    return fx.symbolic_trace(forward)


def effects(gm: GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if is_effect(gm, node) and node.op != "output"]


def find(gm: GraphModule, name: str) -> Node:
    return next(node for node in gm.graph.nodes if node.name == name)


def test_assign_writes_and_returns_its_target() -> None:
    target = torch.zeros(3)
    assert assign(target, torch.ones(3)) is target
    assert target.tolist() == [1, 1, 1]


def test_assign_writes_a_parameter_without_gradient() -> None:
    parameter, value = nn.Parameter(torch.zeros(2)), torch.ones(2, requires_grad=True)
    assign(parameter, value * 2)
    assert parameter.is_leaf
    assert parameter.tolist() == [2, 2]


def test_assign_to_a_buffer_keeps_the_gradient_of_the_value() -> None:
    buffer, value = torch.zeros(2), torch.ones(2, requires_grad=True)
    (assign(buffer, value * 3) * 2).sum().backward()
    assert value.grad is not None
    assert value.grad.tolist() == [6, 6]


def test_fx_does_not_delete_an_assignment_nobody_reads() -> None:
    graph, root = fx.Graph(), nn.Module()
    root.register_buffer("seen", torch.zeros(()))
    x = graph.placeholder("x")
    graph.call_function(assign, (graph.get_attr("seen"), x))
    graph.output(x)
    gm = GraphModule(root, graph)
    assert not gm.graph.eliminate_dead_code()
    assert effects(gm) == ["assign"]


def test_the_output_is_an_effect_and_placeholders_are_not() -> None:
    gm = trace(lambda x: torch.relu(x))
    assert [is_effect(gm, node) for node in gm.graph.nodes] == [False, False, True]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch._assert, (True, "message")),
        (operator.setitem, ("x", 0, 1)),
        (torch._C._set_grad_enabled, (False,)),
        (torch.amp.autocast_mode._enter_autocast, ("cpu", None, True, None)),
        (torch.ops.aten.add_.Tensor, ("x", 1)),
        (torch.Tensor.add_, ("x", 1)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_switches_asserts_and_writes_to_inputs_are_effects(
    function: object, args: tuple[object, ...]
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(function, tuple(x if arg == "x" else arg for arg in args))
    graph.output(x)
    assert is_effect(GraphModule(nn.Module(), graph), node)


def test_a_marked_node_is_an_effect() -> None:
    gm = trace(lambda x: torch.relu(x))
    node = find(gm, "relu")
    node.meta["mutates"] = True
    assert is_effect(gm, node)
    assert [written.name for written in written_by(gm, node)] == ["x"]


class InPlace(nn.Module):
    def __init__(self, *, read_again: bool = False, view: bool = False) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(1, 1, 1), nn.ReLU(inplace=True)
        self.read_again, self.view = read_again, view

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        z = self.relu(y[:, 0] if self.view else y)
        return z + y if self.read_again else z


def test_a_write_into_a_fresh_value_nobody_else_reads_is_no_effect() -> None:
    assert effects(trace(InPlace())) == []
    assert effects(trace(InPlace(view=True))) == []
    assert effects(trace(InPlace(read_again=True))) == ["relu"]
    assert effects(trace(InPlace(read_again=True, view=True))) == ["relu"]
    assert effects(trace(nn.Sequential(nn.ReLU(inplace=True)))) == ["_0"]
    assert effects(trace(lambda x: F.relu(x, inplace=True))) == ["relu"]
    assert effects(trace(lambda x: torch.add(x, 1, out=x))) == ["add"]


def test_a_chain_of_writes_is_followed_to_where_the_memory_comes_from() -> None:
    assert effects(trace(lambda x: x.abs().relu_().add_(1))) == []
    assert effects(trace(lambda x: x.relu_().add_(1))) == ["relu_", "add_"]


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_a_norm_that_updates_its_statistics_is_an_effect(kind: type[nn.Module]) -> None:
    gm = trace(nn.Sequential(kind(3, track_running_stats=True)))
    assert effects(gm.train()) == ["_0"]
    assert effects(gm.eval()) == []
    assert effects(trace(nn.Sequential(kind(3, track_running_stats=False))).train()) == []


def test_a_functional_norm_is_an_effect_as_its_flag_says() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("var", torch.ones(3))
            self.mode = ModeConstant(True, False)

        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x, self.mean, self.var, training=self.mode())

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

    net = Net()
    gm = GraphModule(net, Tracer().trace(net))
    norm = find(gm, "batch_norm")
    assert read_flag(gm.train(), norm.kwargs["training"]) is True
    assert effects(gm) == ["batch_norm"]
    assert read_flag(gm.eval(), norm.kwargs["training"]) is False
    assert effects(gm) == []
    assert read_flag(gm, 0.5) == 0.5
    assert read_flag(gm, find(gm, "x")) is None


def test_overwritten_values_are_found_through_views() -> None:
    def forward(x: Tensor) -> Tensor:
        fresh = x.abs()
        row = fresh[0]
        other = fresh.sigmoid()
        row.add_(1)
        return other + fresh

    gm = trace(forward)
    assert {node.name for node in overwritten(gm)} == {"abs_1", "getitem"}


def test_the_result_of_the_last_write_is_not_overwritten() -> None:
    gm = trace(lambda x: x.abs().relu_())
    assert {node.name for node in overwritten(gm)} == {"abs_1"}


def test_a_buffer_that_is_assigned_is_overwritten() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            before = x + self.count
            self.count = self.count + 1
            return before

    gm = capture(Counter(), (torch.zeros(2),))
    assert [node.name for node in overwritten(gm)] == ["count"]
    assert len(effects(gm)) == 1


def test_tensors_that_calls_change_are_named() -> None:
    class Counts(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.scale

    gm = capture(nn.Sequential(Counts(), nn.Linear(2, 2)), torch.ones(1, 2))
    assert written_tensors(gm) == ["0.calls"]
