"""Traverse a graph once and give every tensor its labels."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError
from sparsebit.graph.effects import assign
from sparsebit.graph.ops import bind
from sparsebit.graph.ops.spec import OpCall, fetch_tensor, place
from sparsebit.graph.value import tensors_in
from sparsebit.sparse.channels.match import alive, match, operand, to_labels
from sparsebit.sparse.channels.rules import RULES, Rule, Stop, Visit
from sparsebit.sparse.channels.rules.base import why
from sparsebit.sparse.channels.trace import Trace, blank


def trace_labels(gm: GraphModule, *, whole_heads: bool = True) -> Trace:
    """Labels for every node of a captured graph, before the constraints between dims are solved."""
    trace = Trace(gm, whole_heads=whole_heads)
    for node in gm.graph.nodes:
        if node.op == "output":
            for leaf in node.all_input_nodes:
                trace.outputs[leaf.name] = trace.values[leaf.name]
        elif node.op == "get_attr":
            held = _attribute(gm, node)
            trace.values[node.name] = trace.tensor(str(node.target)) if held is not None else None
        elif "value" not in node.meta:
            raise GraphError(
                "channel groups depend on shapes, and no shape is recorded here",
                where=place(node),
                hint="capture the model with example inputs: sparsebit.capture(model, inputs)",
            )
        elif node.op == "placeholder":
            trace.values[node.name] = blank(node.meta["value"])
        else:
            trace.values[node.name] = _visit(trace, node)
    return trace


def _visit(trace: Trace, node: Node) -> object:
    if node.target is assign:
        return _assign(trace, node)
    if next(tensors_in(node.meta["value"]), None) is None:
        return node.meta["value"]  # a size, a number, a flag
    call = bind(trace.gm, node)
    if call is None:
        return _give_up(trace, node, f"unknown operator {_target(node)} at {place(node)}")
    trace.calls[node.name] = call
    try:
        chosen = _rule_for(call)
        if chosen is None:
            return _give_up(trace, node, f"{why(call)} has no rule that says which channels its result has")
        return chosen(Visit(trace, call))
    except Stop as stopped:
        return _give_up(trace, node, str(stopped))
    except Exception as error:
        own = {one.spec.name for one in trace.calls.values() if one.spec.family == "custom"}
        if not own or isinstance(error, GraphError):
            raise
        raise GraphError(
            f"the channel rule of {call.spec.name} failed: {str(error).partition(chr(10))[0]}",
            where=place(node),
            hint=f"the entry of a registered operator ({', '.join(sorted(own))}) may describe another operator: "
            "its channels=, elementwise=, moves= or like=",
        ) from error


def _rule_for(call: OpCall) -> Rule | None:
    name = call.spec.channels or ("elementwise" if call.spec.elementwise else "")
    if name and name not in RULES:
        raise GraphError(
            f"there is no channel rule {name!r}",
            where=f"operator {call.spec.name!r}",
            expected=f"one of {', '.join(sorted(RULES))}",
        )
    return RULES[name] if name else None


def _give_up(trace: Trace, node: Node, reason: str) -> object:
    """All inputs of this node keep their sizes, and its results have no labels."""
    trace.stops[node.name] = reason
    for source in node.all_input_nodes:
        trace.freeze(trace.values.get(source.name), reason)
    if node.op == "call_module":  # a rule may have given up halfway
        own = [axis for axis in trace.axes.values() if axis.tensor.startswith(f"{node.target}.")]
        trace.frozen += [(axis.labels, reason) for axis in own]
    return blank(node.meta["value"])


def _assign(trace: Trace, node: Node) -> object:
    """A buffer gets a new value: tie the labels of both."""
    target, value = (trace.labels_of(item) for item in node.args[:2])
    rank = len(target.shape)
    left = operand(trace, target, range(rank))
    right = operand(trace, value, range(rank - len(value.shape), rank))
    families = alive(trace, match(trace, left, right, f"assign at {place(node)}"))
    return to_labels(families, range(rank), target.shape, all(map(right.zero_at, families)))


def _attribute(gm: GraphModule, node: Node) -> Tensor | None:
    try:
        return fetch_tensor(gm, str(node.target))
    except AssertionError:
        return None


def _target(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))
