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
    return next(tensors_in(call.node.meta["value"])).shape


def input_of(trace: Trace, call: OpCall) -> Labels:
    """The labels of the tensor that an operator works on."""
    return trace.labels_of(call.arguments["input"])


def tensor_arguments(trace: Trace, call: OpCall, *names: str) -> list[tuple[Node, Labels]]:
    """The tensors among these arguments (all of them without names), in order."""
    found: list[tuple[Node, Labels]] = []
    for name in names or tuple(call.arguments):
        value = call.arguments.get(name)
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, Node) and isinstance(trace.values.get(item.name), Labels):
                found.append((item, trace.labels_of(item)))
    return found


def number(value: object) -> Any:
    """A constant, or what a size of the graph was when it was recorded."""
    return value.meta.get("value") if isinstance(value, Node) else value


def integer(call: OpCall, name: str, default: int | None = None) -> int:
    """An argument that must be written as a number for the labels to be followed."""
    value = call.arguments.get(name, default)
    if not isinstance(value, int):
        raise Stop(f"{why(call)}: {name} is computed")
    return value


def dim_of(call: OpCall, rank: int, default: int | None = None) -> int:
    """The argument ``dim``, counted from the front."""
    return integer(call, "dim", default) % max(rank, 1)


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
        spare = [dim for dim in range(value.rank) if dim not in letters]
        bare = operand(trace, Labels(value.shape, trace.pinned(value, spare, why(call))), range(value.rank))
        named = {dim: letter for dim, (letter, _) in letters.items()}
        extents = {named[dim]: size for dim, size in bare.extents.items() if dim in named}
        return Operand([layer.moved(named) for layer in bare.layers], extents, value.zero)
    shape = trace.shape(name)
    wide = {axis: named for axis, named in letters.items() if shape[axis] > 1}
    layers = [
        Layer((letter,), trace.axis(name, axis, role, layer_name(call, name)))
        for axis, (letter, role) in wide.items()
    ]
    return Operand(layers, {letter: shape[axis] for axis, (letter, _) in wide.items()})


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
    layers = []
    if shape[dim] > 1:
        layers = [Layer((dim,), trace.axis(name, axis, "output", layer_name(call, name)))]
    return Labels(shape, layers, add_bias(trace, call, layers, dim))


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
    name = tensor_name(vector)
    if vector is None or name is not None:
        if name is not None and labels is not None and len(labels) > 1:
            trace.tie_axis(name, 0, labels, role, layer_name(call, name))
        return True
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


def pick(layers: Sequence[Layer], dim: int) -> Tensor | None:
    """The labels along one dim, if a layer varies along it alone."""
    return next((layer.labels for layer in layers if layer.dims == (dim,)), None)


def outputs(call: OpCall, build: Callable[[TensorInfo], Labels]) -> object:
    """The value of a node with one result, or several of one kind."""

    def walk(info: object) -> object:
        if isinstance(info, TensorInfo):
            return build(info)
        return tuple(walk(item) for item in info) if isinstance(info, (tuple, list)) else info

    return walk(call.node.meta["value"])
