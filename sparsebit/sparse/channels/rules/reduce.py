"""Reductions and everything else that works along a dim."""

from __future__ import annotations

import dataclasses

import torch
from torch.fx import Node

from sparsebit.graph.ops import op_name
from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import operand, sum_product, to_labels
from sparsebit.sparse.channels.rules.base import Stop, outputs, positive, rule, shape_out, why
from sparsebit.sparse.channels.trace import Trace


@rule("reduce", "sum", "mean", "statistic")
def reduction(trace: Trace, call: OpCall) -> object:
    """Removed channels must not change the result: sums of zeros are free, a mean is divided anew, others stop."""
    value = trace.labels_of(call.arguments["input"])
    rank, kind = len(value.shape), call.spec.channels
    dims = _dims(call.arguments.get("dim"), rank)
    layers: list[Layer] = []
    for layer in trace.simple(value):
        gone = [dim for dim in layer.dims if dim in dims]
        if not gone:
            layers.append(layer)
        elif len(gone) < len(layer.dims):
            layers.append(trace.pin(layer, gone, why(call)))
        elif kind == "sum" and value.zero and not _is_negative(call.arguments.get("p")):
            continue
        elif kind in ("mean", "statistic") and _is_part_of_norm(trace, call):
            trace.statistics[call.node.name] = why(call)
        elif kind == "mean" and value.zero:
            trace.averages[call.node.name] = layer
        else:
            trace.pin(layer, gone, f"{why(call)} works along it")
    layers = [layer for layer in layers if layer.dims]
    left = [dim for dim in range(rank) if dim not in dims]

    def build(info: TensorInfo) -> Labels:
        where = {dim: dim if len(info.shape) == rank else left.index(dim) for dim in left}
        return Labels(
            info.shape,
            tuple(layer.moved(where) for layer in layers),
            call.keeps_zero([value.zero]),
        )

    return outputs(call, build)


def _is_negative(order: object) -> bool:
    """Whether a norm is of a negative order: the zeros of removed channels would decide it."""
    return isinstance(order, int | float) and order < 0


@rule("along_dim")
def along_a_dim(trace: Trace, call: OpCall) -> object:
    """Every result depends on all positions along the dim, which therefore keeps its size."""
    given = next(
        (call.arguments[name] for name in ("dim", "dims", "dimension") if name in call.arguments), None
    )
    return _along(trace, call, given)


@rule("softmax")
def softmax(trace: Trace, call: OpCall) -> object:
    """The same, along the second dim or the first where none is given."""
    given = call.arguments.get("dim")
    if given is None:
        given = 0 if len(trace.labels_of(call.arguments["input"]).shape) in (0, 1, 3) else 1
    return _along(trace, call, given)


def _along(trace: Trace, call: OpCall, given: object) -> object:
    value = trace.labels_of(call.arguments["input"])
    dims = _dims(given, len(value.shape))
    layers = [trace.pin(layer, dims, f"{why(call)} works along it") for layer in trace.simple(value)]
    zero = call.keeps_zero([value.zero])
    return outputs(
        call, lambda info: Labels(info.shape, tuple(layer for layer in layers if layer.dims), zero)
    )


@rule("cosine_similarity")
def cosine_similarity(trace: Trace, call: OpCall) -> Labels:
    """Products and squares summed along a dim."""
    first, second = trace.labels_of(call.arguments["x1"]), trace.labels_of(call.arguments["x2"])
    rank = max(len(first.shape), len(second.shape))
    dim = call.arguments["dim"]
    if not isinstance(dim, int):
        raise Stop(why(call))
    at = positive(dim, rank)
    vectors = [operand(trace, one, range(rank - len(one.shape), rank)) for one in (first, second)]
    # the squares of each are summed as well, those of a broadcast one as often as the other is wide
    zero = first.zero and second.zero and all(one.wide(at) for one in vectors)
    vectors = [dataclasses.replace(one, zero=zero) for one in vectors]
    layers = sum_product(trace, vectors, [at], why(call))
    return to_labels(layers, [d for d in range(rank) if d != at], shape_out(call), zero=False)


@rule("glu")
def glu(trace: Trace, call: OpCall) -> Labels:
    """The halves gate each other position by position."""
    value = trace.labels_of(call.arguments["input"])
    dim = call.arguments["dim"]
    if not isinstance(dim, int):
        raise Stop(why(call))
    at = positive(dim, len(value.shape))
    layers = []
    for layer in trace.simple(value):
        if at in layer.dims:
            first, second = layer.labels.chunk(2, layer.dims.index(at))
            trace.sets.join(first, second)
            layer = trace.simplify(Layer(layer.dims, first))
        if layer.dims:
            layers.append(layer)
    return Labels(shape_out(call), tuple(layers), value.zero)


def _dims(given: object, rank: int) -> list[int]:
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return list(range(rank))
    items = given if isinstance(given, (tuple, list, torch.Size)) else [given]
    dims = [item for item in items if isinstance(item, int)]
    if len(dims) != len(items):
        raise Stop("a dim is computed")
    return [positive(dim, rank) for dim in dims]


def _is_part_of_norm(trace: Trace, call: OpCall) -> bool:
    """Whether this is a statistic of a norm written out by hand: x less its mean, or x divided by its spread.

    Only then do the remaining channels decide alone, as in a norm of the smaller width; any other statistic over
    channels keeps all of them.
    """
    source = call.arguments["input"]
    if not isinstance(source, Node) or not call.arguments.get("keepdim"):
        return False
    squared = _inputs_if(trace, source, {"square", "pow", "mul"})
    if call.spec.name == "mean" and not squared:
        return any(op_name(trace.gm, user) == "sub" and user.args[0] is source for user in call.node.users)
    origins = {source} | squared
    origins |= {one for origin in origins for one in _inputs_if(trace, origin, {"sub"})}
    waiting, seen = [(call.node, False)], {call.node}
    while waiting:
        node, inverted = waiting.pop()
        for user in node.users:
            name = op_name(trace.gm, user)
            if name not in _NORM_STEPS or user in seen or user in origins:
                continue
            others = [one for one in user.all_input_nodes if one is not node]
            meets = any(one in origins or _inputs_if(trace, one, {"sub"}) & origins for one in others)
            if meets and ((name == "div" and user.args[1] is node) or (name == "mul" and inverted)):
                return True
            seen.add(user)
            waiting.append((user, inverted or name in ("rsqrt", "reciprocal", "pow", "div")))
    return False


_NORM_STEPS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "div",
        "sqrt",
        "rsqrt",
        "pow",
        "reciprocal",
        "clamp",
        "clamp_min",
        "maximum",
        "getitem",
    }
    | {"to", "type_as"}
)


def _inputs_if(trace: Trace, node: Node, names: set[str]) -> set[Node]:
    """The inputs of a node that is one of these operators, looking through casts."""
    if op_name(trace.gm, node) in {"to", "type_as"}:
        return {one for source in node.all_input_nodes for one in (source, *_inputs_if(trace, source, names))}
    return set(node.all_input_nodes) if op_name(trace.gm, node) in names else set()
