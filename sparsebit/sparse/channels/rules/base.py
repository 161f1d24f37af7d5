"""What every rule is written with: its registry, its way to give up, and how it reads a weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall, place
from sparsebit.graph.value import TensorInfo, tensors_in
from sparsebit.sparse.channels.group import Role
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import Operand, operand
from sparsebit.sparse.channels.trace import Trace

Rule = Callable[[Trace, OpCall], object]
RULES: dict[str, Rule] = {}


class Stop(Exception):
    """A rule cannot follow the labels: whatever reaches this node keeps its size. The text says why."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names by which an ``OpSpec`` asks for it in its field ``channels``."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def why(call: OpCall) -> str:
    """The operator and its place, for a reason."""
    return f"{call.spec.name} at {place(call.node)}"


def shape_out(call: OpCall) -> tuple[int, ...]:
    """Recorded shape of the result, or of the first tensor in it."""
    info = next(tensors_in(call.node.meta["value"]))
    return info.shape


def tensor_arguments(trace: Trace, call: OpCall, *names: str) -> list[tuple[Node, Labels]]:
    """The tensors among these arguments (all of them without names), in order."""
    found: list[tuple[Node, Labels]] = []
    for name in names or tuple(call.arguments):
        value = call.arguments.get(name)
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, Node) and isinstance(trace.values.get(item.name), Labels):
                found.append((item, trace.labels_of(item)))
    return found


def tensor_name(value: object) -> str | None:
    """The name of the parameter or buffer an argument holds, if it is one."""
    if isinstance(value, str):
        return value
    return str(value.target) if isinstance(value, Node) and value.op == "get_attr" else None


def layer_name(call: OpCall, tensor: str) -> str:
    """The layer a weight is reported under: the module called, or whatever holds the parameter."""
    if call.module is not None:
        return str(call.node.target)
    path, _, leaf = tensor.rpartition(".")
    return path if path and leaf == "weight" else tensor


def weight_operand(
    trace: Trace, call: OpCall, weight: object, letters: Mapping[int, tuple[int, Role]]
) -> Operand:
    """A weight with the axes that count named: axis -> (letter, role). Any other axis keeps its size."""
    name = tensor_name(weight)
    if name is None:
        value = trace.labels_of(weight)
        spare = [dim for dim in range(len(value.shape)) if dim not in letters]
        layers = [trace.pin(layer, spare, why(call)) for layer in trace.simple(value)]
        bare = operand(trace, Labels(value.shape, tuple(layers), value.zero), range(len(value.shape)))
        named = {dim: letter for dim, (letter, _) in letters.items()}
        extents = {named[dim]: size for dim, size in bare.extents.items() if dim in named}
        return Operand([layer.moved(named) for layer in bare.layers], extents, value.zero)
    shape = (
        call.shape(_argument_of(call, weight)) if isinstance(weight, str) else trace.labels_of(weight).shape
    )
    layers, extents = [], {}
    for axis, (letter, role) in letters.items():
        if shape[axis] > 1:
            labels = trace.axis(name, axis, role, layer_name(call, name))
            layers.append(Layer((letter,), labels))
            extents[letter] = shape[axis]
    return Operand(layers, extents)


def read_by(trace: Trace, call: OpCall, value: Labels, dim: int, axis: int) -> bool:
    """The common case of a layer that reads the one family of channels there is: no need to match anything.

    True if the weight's axis was tied to the channels along ``dim``.
    """
    name = tensor_name(call.arguments["weight"])
    if name is None or len(value.layers) != 1 or (trace.canonical(name), axis, 0) in trace.axes:
        return False
    layer = trace.simplify(value.layers[0])
    if layer.dims != (dim,):
        return False
    trace.tie_axis(name, axis, layer.labels, "input", layer_name(call, name))
    return True


def made_by(trace: Trace, call: OpCall, axis: int, dim: int, shape: tuple[int, ...]) -> Labels:
    """The new channels a layer makes along ``dim``, tied to its weight and its bias."""
    name = tensor_name(call.arguments["weight"])
    assert name is not None
    labels = trace.axis(name, axis, "output", layer_name(call, name)) if shape[dim] > 1 else None
    zero = tie_vector(trace, call, call.arguments.get("bias"), labels, "state")
    return Labels(shape, (Layer((dim,), labels),) if labels is not None else (), zero)


def add_bias(trace: Trace, call: OpCall, layers: Sequence[Layer], dim: int) -> bool:
    """Tie the bias to the channels along ``dim``; True if adding it keeps the zeros of removed channels.

    It does not for a layer along another dim: every row gets the bias.
    """
    bias = call.arguments.get("bias")
    zero = tie_vector(trace, call, bias, pick(layers, dim), "state")
    return bias is None or (zero and all(layer.dims == (dim,) for layer in layers))


def tie_vector(trace: Trace, call: OpCall, vector: object, labels: Tensor | None, role: Role) -> bool:
    """Tie a bias, a scale or a statistic [n] to the labels of what it belongs to; None where those are fixed.

    True if it is zero for a removed channel: a parameter is, what the graph computes may not be.
    """
    if vector is None:
        return True
    name = tensor_name(vector)
    if name is None:
        value = trace.labels_of(vector) if isinstance(vector, Node) else Labels(())
        layers = trace.simple(value)
        for layer in layers:
            if labels is None:
                trace.pin(layer, layer.dims, why(call))
            else:
                trace.sets.join(layer.along(layer.dims), labels)
        if labels is not None and not layers:
            trace.pin(Layer((0,), labels), (0,), f"{why(call)} meets a tensor whose size is fixed")
        return value.zero
    if labels is not None and len(labels) > 1:
        trace.tie_axis(name, 0, labels, role, layer_name(call, name))
    return True


def pick(layers: Sequence[Layer], dim: int) -> Tensor | None:
    """The labels along one dim, if a layer varies along it alone."""
    for layer in layers:
        if layer.dims == (dim,):
            return layer.labels
    return None


def outputs(call: OpCall, build: Callable[[TensorInfo], Labels]) -> object:
    """The value of a node with one result, or several of one kind."""

    def walk(info: object) -> object:
        if isinstance(info, TensorInfo):
            return build(info)
        if isinstance(info, (tuple, list)):
            return tuple(walk(item) for item in info)
        return info

    return walk(call.node.meta["value"])


def number(value: object) -> Any:
    """A constant, or what a size of the graph was when it was recorded."""
    return value.meta.get("value") if isinstance(value, Node) else value


def positive(dim: int, rank: int) -> int:
    """A dim counted from the front."""
    return dim + rank if dim < 0 else dim


def _argument_of(call: OpCall, value: object) -> str:
    return next(name for name, held in call.arguments.items() if held is value)
