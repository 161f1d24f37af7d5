"""Last steps on every graph: mode constants get an owner, unused results go."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import fx, nn

from sparsebit.graph.capture.placement import drop_dead_functions, place_mode_constants
from sparsebit.graph.effects import assign
from sparsebit.graph.functional import ModeConstant, check_branch


def test_a_mode_constant_becomes_a_module_of_its_owner_in_its_owners_mode() -> None:
    shell = nn.Sequential(nn.Sequential(), nn.Sequential())
    shell[0].eval()
    graph = fx.Graph()
    for path in ("0", "1", ""):
        name = f"{path}._mode_constant0" if path else "_mode_constant0"
        node = graph.call_module(name)
        node.meta.update(module_path=path, mode_constant=ModeConstant(0.5, 0.0))
    plain = graph.call_module("1")
    place_mode_constants(shell, graph)
    assert [shell.get_submodule(str(node.target))() for node in graph.nodes if node is not plain] == [
        0.0,
        0.5,
        0.5,
    ]
    assert not any("mode_constant" in node.meta for node in graph.nodes)


def graph_with_unused() -> tuple[fx.Graph, dict[str, fx.Node]]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = {
        "unused input": graph.placeholder("y"),
        "attribute": graph.get_attr("weight"),
        "chain": graph.call_function(torch.relu, (graph.call_function(torch.neg, (x,)),)),
        "random": graph.call_function(torch.rand, ((2,),)),
        "write": graph.call_function(torch.Tensor.add_, (x, 1)),
        "assignment": graph.call_function(assign, (x, x)),
        "check": graph.call_function(check_branch, (True, True, "here")),
        "module": graph.call_module("conv", (x,)),
        "grad mode": graph.call_function(torch._C._set_grad_enabled, (False,)),
        "used": graph.call_function(F.gelu, (x,)),
    }
    nodes["random"].meta["random"] = nodes["write"].meta["mutates"] = True
    graph.output((nodes["used"],))
    return graph, nodes


def test_only_results_that_nobody_can_miss_are_dropped() -> None:
    graph, nodes = graph_with_unused()
    drop_dead_functions(graph)
    gone = {name for name, node in nodes.items() if node not in list(graph.nodes)}
    assert gone == {"attribute", "chain", "random"}
    assert torch.neg not in {node.target for node in graph.nodes}, "nor what only dropped nodes read"


def test_an_unused_draw_stays_where_it_moves_the_generator_on() -> None:
    graph, nodes = graph_with_unused()
    drop_dead_functions(graph, keep_random=True)
    assert nodes["random"] in list(graph.nodes) and nodes["chain"] not in list(graph.nodes)
