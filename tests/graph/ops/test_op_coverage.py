"""How much of a graph is known."""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from sparsebit.graph.ops import coverage
from sparsebit.graph.ops.op_coverage import target_name
from tests.graph.ops.sampling import real, record_values


@fx.wrap
def stranger(x: Tensor) -> Tensor:
    """Nobody registered this."""
    return x * 2


class Mystery(nn.Module):
    """A whole layer nobody registered."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Net(nn.Module):
    """Three known nodes (linear, relu, sum) and three unknown ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.mystery = nn.Linear(4, 4, bias=False), Mystery()

    def forward(self, x: Tensor) -> Tensor:
        return stranger(self.mystery(stranger(torch.relu(self.linear(x))))).sum()


class KeepMystery(fx.Tracer):
    """Traces everything but the layer."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Mystery) or super().is_leaf_module(m, module_qualified_name)


def traced() -> fx.GraphModule:
    net = Net()
    return fx.GraphModule(net, KeepMystery().trace(net))


def test_nodes_and_work_are_counted() -> None:
    covered = coverage(record_values(traced(), real(3, 4).float()))
    assert (covered.known, covered.nodes, covered.node_share) == (3, 6, 0.5)
    assert (covered.known_macs, covered.macs, covered.mac_share) == (48, 96, 0.5)
    assert [(op.count, op.macs) for op in covered.unknown] == [(2, 0), (1, 48)]


def test_the_summary_names_what_is_unknown_and_where() -> None:
    text = str(coverage(record_values(traced(), real(3, 4).float()))).splitlines()
    assert text[0] == "operators known: 3 of 6 nodes (50.00%), 50.00% of the MACs"
    assert text[1].endswith("test_op_coverage.stranger x2, first at node 'stranger'")
    assert "test_op_coverage.Mystery x1" in text[2]


def test_without_shapes_only_nodes_are_counted() -> None:
    covered = coverage(traced())
    assert covered.mac_share is None and covered.macs is None and covered.node_share == 0.5
    assert "MACs not counted" in str(covered)


def test_an_empty_graph_is_known_altogether() -> None:
    covered = coverage(record_values(fx.symbolic_trace(nn.Sequential()), real(1)))
    assert covered.node_share == 1.0 and covered.mac_share == 1.0


def test_targets_have_names_people_recognise() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = [graph.call_method("cumulative", (x,)), graph.call_function(torch.ops.aten.relu.default, (x,))]
    gm = fx.GraphModule(nn.Module(), graph)
    assert [target_name(gm, node) for node in nodes] == ["torch.Tensor.cumulative", "aten::relu"]
