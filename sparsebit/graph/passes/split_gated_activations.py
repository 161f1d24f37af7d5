"""Split activations that multiply their input by a gate into these two operators."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from sparsebit.graph.ops import OpCall, bind
from sparsebit.graph.passes.edit import set_module

_GATES = {"hardswish": (nn.Hardsigmoid, F.hardsigmoid), "silu": (nn.Sigmoid, F.sigmoid)}


def split_gated_activations(gm: GraphModule, ops: Collection[str], keep: Collection[str] = ()) -> int:
    """Write each ``hardswish(x)`` and ``silu(x)`` that ``ops`` names as ``x * gate(x)``, but for the nodes in ``keep``.

    Some runtimes have integer kernels for the parts, but not for the activation. The gate replaces the module and keeps
    its name; the product keeps the name of the node.

    Example:
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.Hardswish()))
        >>> split_gated_activations(gm, ["hardswish"]), [node.name for node in gm.graph.nodes]
        (1, ['input_1', '_0_gate', '_0', 'output'])
    """
    calls = [
        bind(gm, node) for node in gm.graph.nodes if node.op.startswith("call_") and node.name not in keep
    ]
    found = [
        call for call in calls if call is not None and call.spec.name in ops and call.spec.name in _GATES
    ]
    for call in found:
        _split(gm, call, call.node)
    if found:
        gm.recompile()
    return len(found)


def _split(gm: GraphModule, call: OpCall, node: Node) -> None:
    source, (module, function) = call.activations[0], _GATES[call.spec.name]
    with gm.graph.inserting_before(node):
        target = node.target if node.op == "call_module" else function
        gate = gm.graph.create_node(node.op, target, (source,), name=f"{node.name}_gate")
    if node.op == "call_module":
        set_module(gm, str(node.target), module().train(gm.training))
    gate.meta = dict(node.meta)
    node.op, node.target, node.args, node.kwargs = "call_function", operator.mul, (source, gate), {}
