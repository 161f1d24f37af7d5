"""Picking, looking up and joining: indexing, tables, gathering, concatenation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer, layer_of
from sparsebit.sparse.channels.match import Operand, aligned, alive, match, operand, to_labels
from sparsebit.sparse.channels.rules.base import (
    Stop,
    dim_of,
    input_of,
    layer_name,
    pick,
    rule,
    shape_out,
    tensor_arguments,
    tensor_name,
    why,
)
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
    picked, looked_up = [], []
    for dim, item in _indexed(index, held.rank):
        tensor = trace.values.get(item.name) if isinstance(item, Node) else None
        if isinstance(item, Node) and isinstance(tensor, Labels) and item.meta["value"].dtype == torch.bool:
            raise Stop(f"{why(call)} selects by a mask")
        if isinstance(item, bool):
            raise Stop(why(call))
        if isinstance(tensor, Labels):
            trace.freeze(tensor, f"{why(call)} uses it as an index")
        if isinstance(tensor, Labels) or isinstance(item, (list, tuple)):
            looked_up.append(dim)
        elif isinstance(item, (int, Node)):
            picked.append(dim)
    for layer in trace.simple(held):
        trace.pin(layer, looked_up, f"{why(call)} looks positions up by value")
    value = keep_picked_dims(trace, held, picked, call)
    for dim, item in _indexed(index, held.rank):
        if isinstance(item, slice) and item.step not in (None, 1):
            for layer in trace.simple(value):
                _keep_step(trace, layer, dim, item, call)
    results = [run_node(trace, call, source, layer.full(value.shape)) for layer in trace.simple(value)]
    layers = [layer_of(result) for result in results if isinstance(result, Tensor)]
    shape = shape_out(call)
    return Labels(shape, layers if 0 not in shape else (), value.zero)


def _indexed(index: object, rank: int) -> Iterator[tuple[int, object]]:
    """Every part of an index that takes a dim, with that dim."""
    items = list(index) if isinstance(index, tuple) else [index]
    spent, dim = sum(item is not None and item is not Ellipsis for item in items), 0
    for item in items:
        if item is Ellipsis:
            dim += rank - spent
        elif item is not None:
            yield dim, item
            dim += 1


def _keep_step(trace: Trace, layer: Layer, dim: int, item: slice, call: OpCall) -> None:
    """``x[:, 1::2]`` stays right as long as whole steps go: positions 0 and 1, 2 and 3, ..."""
    if dim not in layer.dims:
        return
    layer = trace.pin(layer, [other for other in layer.dims if other != dim], why(call))
    step, start = item.step, item.start or 0
    known = item.stop is None and isinstance(step, int) and isinstance(start, int)
    if layer.dims and known and len(layer.labels) % step == 0 and 0 <= start < step:
        trace.pin(Layer((0, 1), layer.labels.reshape(-1, step)), [1], why(call))
    else:
        trace.pin(layer, [dim], f"{why(call)} picks single positions")


@rule("embedding")
def embedding(trace: Trace, call: OpCall) -> Labels:
    """A row of the table for every index; rows are found by value, so all of them stay."""
    if call.arguments.get("max_norm") is not None:
        raise Stop(f"{why(call)} renormalises its rows")
    index, weight, shape = input_of(trace, call), call.arguments["weight"], shape_out(call)
    name, zero = tensor_name(weight), True
    if name is None:
        table = trace.labels_of(weight)
        labels, zero = pick(trace.pinned(table, [0], f"{why(call)} looks rows up"), 1), table.zero
    else:
        rows = trace.axis(name, 0, "output", layer_name(call, name), bare=True)
        trace.frozen.append((rows, f"{why(call)} looks rows up"))
        labels = trace.axis(name, 1, "output", layer_name(call, name))
    layers = [] if labels is None or len(labels) == 1 else [Layer((len(shape) - 1,), labels)]
    if "offsets" in call.arguments:  # rows are summed
        trace.freeze(index, f"{why(call)} uses it as an index")
        return Labels(shape, layers, zero)
    beside = trace.simple(index)  # a removed index is not an index of a row of zeros
    return Labels(shape, [*beside, *layers], zero and not beside)


@rule("index_select")
def index_select(trace: Trace, call: OpCall) -> Labels:
    """Positions along one dim are looked up by value, so it keeps its size."""
    looked_up, _ = _looked_up(trace, call)
    trace.freeze(trace.labels_of(call.arguments["index"]), f"{why(call)} uses it as an index")
    shape = shape_out(call)
    return to_labels(looked_up.layers, range(len(shape)), shape, looked_up.zero)


@rule("look_up")
def look_up(trace: Trace, call: OpCall) -> Labels:
    """The same with an index of the result's shape, which belongs to the result along the other dims."""
    looked_up, at = _looked_up(trace, call)
    shape = shape_out(call)
    looked_up.extents.pop(at, None)
    index = aligned(trace, trace.labels_of(call.arguments["index"]), len(shape))
    tied = match(trace, looked_up, index, why(call))
    return to_labels(tied.layers, range(len(shape)), shape, looked_up.zero)


def _looked_up(trace: Trace, call: OpCall) -> tuple[Operand, int]:
    """The input with the dim of the index kept as it is, and that dim."""
    value = input_of(trace, call)
    at = dim_of(call, value.rank)
    layers = trace.pinned(value, [at], f"{why(call)} looks positions up by value")
    return aligned(trace, Labels(value.shape, layers, value.zero), value.rank), at


@rule("cat")
def cat(trace: Trace, call: OpCall) -> Labels:
    """Labels side by side along the dim; along the others the parts belong together."""
    return _cat(trace, call, dim_of(call, len(shape_out(call)), 0))


@rule("vstack")
def vstack(trace: Trace, call: OpCall) -> Labels:
    """Along the first dim."""
    return _cat(trace, call, 0)


@rule("hstack")
def hstack(trace: Trace, call: OpCall) -> Labels:
    """Along the second dim, or the only one."""
    return _cat(trace, call, min(1, len(shape_out(call)) - 1))


@rule("stack")
def stack(trace: Trace, call: OpCall) -> Labels:
    """A new dim, along which the parts keep their size; they belong together along all others."""
    found, shape = tensor_arguments(trace, call, "tensors"), shape_out(call)
    at = dim_of(call, len(shape), 0)
    letters = [dim for dim in range(len(shape)) if dim != at]
    total = operand(trace, found[0][1], letters, found[0][0])
    for node, value in found[1:]:
        total = match(trace, total, operand(trace, value, letters, node), why(call))
    zero = all(value.zero for _, value in found)
    return to_labels(alive(trace, total), range(len(shape)), shape, zero)


def _cat(trace: Trace, call: OpCall, at: int) -> Labels:
    """Join the layers that run across the parts, then put those along ``at`` end to end."""
    found = [(node, value) for node, value in tensor_arguments(trace, call, "tensors") if value.shape != (0,)]
    shape = shape_out(call)
    rank = len(shape)
    if any(value.rank != rank for _, value in found):
        raise Stop(why(call))
    across: Operand | None = None
    ends: list[Layer] = []
    crossing = {
        dim for _, value in found for layer in trace.simple(value) if at in layer.dims for dim in layer.dims
    } - {at}
    for node, value in found:
        if value.wild:
            ends.append(Layer((at,), trace.sets.fresh(value.shape[at])))
            trace.adopt(node, (ends[-1],) if value.shape[at] > 1 else ())
            continue
        own, beside = _end(trace, call, value, trace.simple(value), at, crossing)
        ends.append(own)
        part = aligned(trace, Labels(value.shape, beside), rank)
        part.extents.pop(at, None)
        across = part if across is None else match(trace, across, part, why(call))
    layers = alive(trace, across) if across is not None else []
    dims = tuple(sorted({at}.union(*(end.dims for end in ends))))
    parts = []
    for end, (_, value) in zip(ends, found, strict=True):
        thin = tuple(size if dim in dims else 1 for dim, size in enumerate(value.shape))
        parts.append(end.full(thin).reshape([thin[dim] for dim in dims]))
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
