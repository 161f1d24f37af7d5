"""Picking and joining: indexing, gathering, concatenation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Labels, Layer, layer_of
from sparsebit.sparse.channels.match import Operand, match, operand, to_labels
from sparsebit.sparse.channels.rules.base import Stop, positive, rule, shape_out, tensor_arguments, why
from sparsebit.sparse.channels.rules.move import keep_picked_dims, run_node
from sparsebit.sparse.channels.trace import Trace


@rule("getitem")
def getitem(trace: Trace, call: OpCall) -> object:
    """One of several results, or an index into a tensor."""
    source, index = call.arguments["input"], call.arguments["index"]
    assert isinstance(source, Node)
    held = trace.values.get(source.name)
    if not isinstance(held, Labels):
        if isinstance(held, (tuple, list, dict)) and not isinstance(index, Node):
            return held[index]  # type: ignore[call-overload]
        raise Stop(why(call))
    picked, looked_up = _indexed_dims(trace, index, held, call)
    for layer in trace.simple(held):
        trace.pin(layer, looked_up, f"{why(call)} looks positions up by value")
    value = _keep_steps(trace, keep_picked_dims(trace, held, picked, call), index, call)
    for tensor in _index_tensors(trace, index):
        trace.freeze(tensor, f"{why(call)} uses it as an index")
    results = [run_node(trace, call, source, layer.full(value.shape)) for layer in trace.simple(value)]
    layers = [layer_of(result) for result in results if isinstance(result, Tensor)]
    shape = shape_out(call)
    return Labels(shape, tuple(layers) if 0 not in shape else (), value.zero)


def _keep_steps(trace: Trace, value: Labels, index: object, call: OpCall) -> Labels:
    """``x[:, 1::2]`` stays right as long as whole steps go: positions 0 and 1, 2 and 3, ..."""
    items = list(index) if isinstance(index, tuple) else [index]
    spent, dim, layers = sum(_dims_taken(item) for item in items), 0, trace.simple(value)
    for item in items:
        step = item.step if isinstance(item, slice) else None
        if item is Ellipsis:
            dim += len(value.shape) - spent
        elif step not in (None, 1):
            layers = [_keep_step(trace, layer, dim, item, call) for layer in layers]  # type: ignore[arg-type]
        dim += _dims_taken(item)
    return Labels(value.shape, tuple(layer for layer in layers if layer.dims), value.zero)


def _keep_step(trace: Trace, layer: Layer, dim: int, item: slice, call: OpCall) -> Layer:
    if dim not in layer.dims:
        return layer
    layer = trace.pin(layer, [other for other in layer.dims if other != dim], why(call))
    step, start = item.step, item.start or 0
    if not layer.dims or item.stop is not None or not isinstance(step, int) or not isinstance(start, int):
        return trace.pin(layer, [dim], f"{why(call)} picks single positions")
    if len(layer.labels) % step or not 0 <= start < step:
        return trace.pin(layer, [dim], f"{why(call)} picks single positions")
    trace.pin(Layer((0, 1), layer.labels.reshape(-1, step)), [1], why(call))
    return trace.simplify(layer)


def _indexed_dims(trace: Trace, index: object, value: Labels, call: OpCall) -> tuple[list[int], list[int]]:
    """The dims indexed by a number, and those indexed by a tensor."""
    items = list(index) if isinstance(index, tuple) else [index]
    spent = sum(_dims_taken(item) for item in items)
    dim, picked, looked_up = 0, [], []
    for item in items:
        if item is Ellipsis:
            dim += len(value.shape) - spent
            continue
        info = item.meta.get("value") if isinstance(item, Node) else None
        if isinstance(info, TensorInfo):
            if info.dtype == torch.bool:
                raise Stop(f"{why(call)} selects by a mask")
            looked_up.append(dim)
        elif isinstance(item, (list, tuple)):
            looked_up.append(dim)
        elif isinstance(item, bool):
            raise Stop(why(call))
        elif isinstance(item, (int, Node)):
            picked.append(dim)
        dim += _dims_taken(item)
    return picked, looked_up


def _dims_taken(item: object) -> int:
    return 0 if item is None or item is Ellipsis else 1


def _index_tensors(trace: Trace, index: object) -> list[Labels]:
    items = list(index) if isinstance(index, tuple) else [index]
    held = [trace.values.get(item.name) for item in items if isinstance(item, Node)]
    return [value for value in held if isinstance(value, Labels)]


@rule("index_select")
def index_select(trace: Trace, call: OpCall) -> Labels:
    """Positions along one dim are looked up by value, so it keeps its size."""
    looked_up, _, zero = _looked_up(trace, call)
    trace.freeze(trace.labels_of(call.arguments["index"]), f"{why(call)} uses it as an index")
    shape = shape_out(call)
    return to_labels(looked_up.layers, range(len(shape)), shape, zero)


@rule("look_up")
def look_up(trace: Trace, call: OpCall) -> Labels:
    """The same with an index of the result's shape, which belongs to the result along the other dims."""
    looked_up, at, zero = _looked_up(trace, call)
    shape = shape_out(call)
    looked_up.extents.pop(at, None)
    index = operand(trace, trace.labels_of(call.arguments["index"]), range(len(shape)))
    return to_labels(match(trace, looked_up, index, why(call)).layers, range(len(shape)), shape, zero)


def _looked_up(trace: Trace, call: OpCall) -> tuple[Operand, int, bool]:
    """The input with the dim of the index kept as it is, that dim, and whether what was removed is zero."""
    value, dim = trace.labels_of(call.arguments["input"]), call.arguments.get("dim")
    if not isinstance(dim, int):
        raise Stop(why(call))
    at = positive(dim, len(value.shape))
    layers = [
        trace.pin(layer, [at], f"{why(call)} looks positions up by value") for layer in trace.simple(value)
    ]
    kept = Labels(value.shape, tuple(x for x in layers if x.dims), value.zero)
    return operand(trace, kept, range(len(value.shape))), at, value.zero


@rule("cat")
def cat(trace: Trace, call: OpCall) -> Labels:
    """Labels side by side along the dim; along the others the parts belong together."""
    dim = call.arguments.get("dim", 0)
    if not isinstance(dim, int):
        raise Stop(f"{why(call)}: the dim is computed")
    return _cat(trace, call, dim)


@rule("vstack")
def vstack(trace: Trace, call: OpCall) -> Labels:
    """Along the first dim."""
    return _cat(trace, call, 0)


@rule("hstack")
def hstack(trace: Trace, call: OpCall) -> Labels:
    """Along the second dim, or the only one."""
    return _cat(trace, call, min(1, len(shape_out(call)) - 1))


def _cat(trace: Trace, call: OpCall, dim: int) -> Labels:
    found = tensor_arguments(trace, call, "tensors")
    found = [(node, value) for node, value in found if value.shape != (0,)]
    rank, shape = len(found[0][1].shape), shape_out(call)
    if any(len(value.shape) != rank for _, value in found) or len(shape) != rank:
        raise Stop(why(call))
    return concatenate(trace, call, found, positive(dim, rank), shape)


@rule("stack")
def stack(trace: Trace, call: OpCall) -> Labels:
    """A new dim, along which the parts keep their size; they belong together along all others."""
    found = tensor_arguments(trace, call, "tensors")
    dim, shape = call.arguments.get("dim", 0), shape_out(call)
    if not isinstance(dim, int):
        raise Stop(f"{why(call)}: the dim is computed")
    at = positive(dim, len(shape))
    letters = [d for d in range(len(shape)) if d != at]
    total = operand(trace, found[0][1], letters, found[0][0])
    for node, value in found[1:]:
        total = match(trace, total, operand(trace, value, letters, node), why(call))
    layers = [layer for layer in map(trace.simplify, total.layers) if layer.dims]
    return to_labels(layers, range(len(shape)), shape, all(value.zero for _, value in found))


def concatenate(
    trace: Trace, call: OpCall, found: list[tuple[Node, Labels]], at: int, shape: tuple[int, ...]
) -> Labels:
    """Join the layers that run across the parts, then put those along ``at`` end to end."""
    rank = len(shape)
    across: Operand | None = None
    ends: list[Layer] = []
    crossing = {
        dim for _, value in found for layer in trace.simple(value) if at in layer.dims for dim in layer.dims
    } - {at}
    for node, value in found:
        if value.wild:
            width = value.shape[at]
            trace.adopt(node, (Layer((at,), trace.sets.fresh(width)),) if width > 1 else ())
            value = trace.labels_of(node)
            ends.append(value.layers[0] if width > 1 else Layer((at,), trace.sets.fresh(width)))
            continue
        simple = trace.simple(value)
        own, beside = _end(trace, call, value, simple, at, crossing)
        ends.append(own)
        part = operand(trace, Labels(value.shape, tuple(beside)), range(rank))
        part.extents.pop(at, None)
        across = part if across is None else match(trace, across, part, why(call))
    layers = [layer for layer in map(trace.simplify, across.layers if across else []) if layer.dims]
    dims = tuple(sorted({at}.union(*(end.dims for end in ends))))
    parts = []
    for end, (_, value) in zip(ends, found, strict=True):
        thin = tuple(size if dim in dims else 1 for dim, size in enumerate(value.shape))
        full = Layer(end.dims, end.labels).full(thin)
        parts.append(full.reshape([thin[dim] for dim in dims]))
    layers.append(Layer(dims, torch.cat(parts, dims.index(at))))
    return to_labels(layers, range(rank), shape, all(value.zero for _, value in found))


def _end(
    trace: Trace, call: OpCall, value: Labels, layers: list[Layer], at: int, crossing: set[int]
) -> tuple[Layer, list[Layer]]:
    """The layer along the dim of concatenation (a fixed one where there is none), and the others.

    Where the other parts have channels that vary along ``at`` and along ``crossing`` (dims of a head, for every
    head), channels that vary along ``crossing`` alone are taken as the same all along ``at``.
    """
    along = [layer for layer in layers if at in layer.dims]
    for layer in along[1:]:
        trace.pin(layer, layer.dims, why(call))
    beside = [layer for layer in layers if at not in layer.dims]
    if along:
        return along[0], beside
    wide = next((layer for layer in beside if set(layer.dims) <= crossing), None)
    if wide is not None:
        return wide, [layer for layer in beside if layer is not wide]
    fixed = Layer((at,), trace.sets.fresh(value.shape[at]))
    trace.frozen.append((fixed.labels, f"{why(call)} joins a tensor whose size is fixed"))
    return fixed, beside
