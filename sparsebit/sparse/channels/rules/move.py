"""Operators that only move elements: run them on the labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_aggregate

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Labels, Layer, layer_of, reshape_layer
from sparsebit.sparse.channels.match import match, operand, to_labels
from sparsebit.sparse.channels.rules.base import Stop, outputs, positive, rule, shape_out, why
from sparsebit.sparse.channels.trace import Trace


@rule("move")
def move(trace: Trace, call: OpCall) -> object:
    """Gives the same elements for the labels as for the data, and can be given smaller sizes afterwards."""
    source = call.arguments["input"]
    return _move(
        trace, call, trace.labels_of(source), lambda value, layer: _run(trace, call, source, value, layer)
    )


@rule("pick")
def pick_positions(trace: Trace, call: OpCall) -> object:
    """The same where single positions are taken from a dim."""
    source, dim = call.arguments["input"], call.arguments.get("dim", 0)
    if not isinstance(dim, int):
        raise Stop(f"{why(call)}: the dim is computed")
    value = trace.labels_of(source)
    value = keep_picked_dims(trace, value, [positive(dim, len(value.shape))], call)
    return _move(trace, call, value, lambda value, layer: _run(trace, call, source, value, layer))


@rule("reshape")
def reshape(trace: Trace, call: OpCall) -> object:
    """The same elements in the same order."""
    value = trace.labels_of(call.arguments["input"])
    return _move(
        trace, call, value, lambda value, layer: [reshape_layer(layer, value.shape, shape_out(call))]
    )


@rule("reshape_as")
def reshape_as(trace: Trace, call: OpCall) -> Labels:
    """The same elements in the size of another tensor: both can only shrink together."""
    value, other, shape = trace.labels_of(call.arguments["input"]), call.arguments["other"], shape_out(call)
    layers = tuple(reshape_layer(layer, value.shape, shape) for layer in trace.simple(value))
    letters = range(len(shape))
    moved = operand(trace, Labels(shape, layers, value.zero), letters)
    tied = match(trace, moved, operand(trace, trace.labels_of(other), letters, other), why(call))
    alive = [layer for layer in map(trace.simplify, tied.layers) if layer.dims]
    return to_labels(alive, letters, shape, value.zero)


@rule("expand")
def expand(trace: Trace, call: OpCall) -> object:
    """Copies made along new dims can go one by one: they hold nothing of their own, and are not zero."""
    source = call.arguments["input"]
    value, shape = trace.labels_of(source), shape_out(call)
    old = (1,) * (len(shape) - len(value.shape)) + value.shape
    copies = [
        Layer((dim,), trace.sets.fresh(size)) for dim, size in enumerate(shape) if size > 1 and old[dim] == 1
    ]
    value = replace(value, zero=value.zero and not copies)
    return _move(
        trace,
        call,
        value,
        lambda value, layer: _run(trace, call, source, value, layer),
        *([one] for one in copies),
    )


def _move(
    trace: Trace,
    call: OpCall,
    value: Labels,
    through: Callable[[Labels, Layer], list[Layer]],
    *more: list[Layer],
) -> object:
    """Each layer through the operator; every result takes its part of each."""
    results = [*(through(value, layer) for layer in trace.simple(value)), *more]
    position = iter(range(10**9))

    def build(info: TensorInfo) -> Labels:
        index = next(position)
        layers = tuple(
            found[index] for found in results
        )  # also those that no longer vary: one channel is all
        return Labels(info.shape, layers if 0 not in info.shape else (), value.zero)

    return outputs(call, build)


def _run(trace: Trace, call: OpCall, source: object, value: Labels, layer: Layer) -> list[Layer]:
    result = run_node(trace, call, source, layer.full(value.shape))
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [layer_of(part) for part in parts if isinstance(part, Tensor)]


def run_node(trace: Trace, call: OpCall, source: object, labels: Tensor) -> object:
    """Call the node's own target with ``labels`` in place of its tensor and recorded sizes elsewhere."""

    def give(item: object) -> object:
        if item is source:
            return labels
        if not isinstance(item, Node):
            return item
        other = trace.values.get(item.name)
        if isinstance(other, Labels):
            return torch.zeros((), dtype=torch.int64).expand(other.shape)
        return item.meta.get("value")

    args, kwargs = map_aggregate(call.node.args, give), map_aggregate(call.node.kwargs, give)  # type: ignore[arg-type]
    function = call.module if call.module is not None else call.node.target
    assert callable(function)
    return function(*args, **kwargs)


def keep_picked_dims(trace: Trace, value: Labels, dims: list[int], call: OpCall) -> Labels:
    """Where single positions are picked from a dim, layers that also vary elsewhere keep that dim whole."""
    layers = [
        trace.pin(layer, dims, why(call)) if any(dim not in dims for dim in layer.dims) else layer
        for layer in trace.simple(value)
    ]
    return Labels(value.shape, tuple(layer for layer in layers if layer.dims), value.zero)


@rule("channel_shuffle")
def channel_shuffle(trace: Trace, call: OpCall) -> Labels:
    """As a view [groups, n], transposed: the same positions of every group."""
    value, groups = trace.labels_of(call.arguments["input"]), call.arguments["groups"]
    if not isinstance(groups, int):
        raise Stop(why(call))
    layers = []
    for layer in _channels_only(trace, call, value, 1):
        if layer.dims == (1,):
            table = layer.labels.reshape(groups, -1)
            trace.pin(Layer((0, 1), table), [0], why(call))
            layer = Layer((1,), table.t().reshape(-1))
        layers.append(layer)
    return Labels(value.shape, tuple(layers), value.zero)


@rule("pixel_shuffle")
def pixel_shuffle(trace: Trace, call: OpCall) -> Labels:
    """Channels become positions: those of one new channel go together; or positions become channels."""
    value = trace.labels_of(call.arguments["input"])
    up = "upscale_factor" in call.arguments
    factor = call.arguments["upscale_factor" if up else "downscale_factor"]
    if not isinstance(factor, int):
        raise Stop(why(call))
    at, layers = len(value.shape) - 3, []
    for layer in _channels_only(trace, call, value, at):
        if layer.dims == (at,) and up:
            table = Layer((0, 1), layer.labels.reshape(-1, factor * factor))
            trace.pin(table, [1], why(call))
            layer = Layer((at,), table.labels[:, 0])
        elif layer.dims == (at,):
            layer = Layer((at,), layer.labels.repeat_interleave(factor * factor))
        layers.append(layer)
    return Labels(shape_out(call), tuple(layers), value.zero)


@rule("im2col")
def im2col(trace: Trace, call: OpCall) -> Labels:
    """Every channel becomes as many rows as the kernel has positions."""
    value, shape = trace.labels_of(call.arguments["input"]), shape_out(call)
    at = len(value.shape) - 3
    layers = [
        Layer((at,), layer.labels.repeat_interleave(shape[at] // value.shape[at]))
        if layer.dims == (at,)
        else layer
        for layer in _channels_only(trace, call, value, at)
    ]
    return Labels(shape, tuple(layers), value.zero)


@rule("pad")
def pad(trace: Trace, call: OpCall) -> Labels:
    """Constant padding along channels adds some that hold nothing and can go like any other."""
    value, shape = trace.labels_of(call.arguments["input"]), shape_out(call)
    rank, amounts = len(value.shape), call.arguments["pad"]
    if isinstance(amounts, int):
        amounts = (amounts,) * 2 * (rank - 2)
    if not isinstance(amounts, (tuple, list)):
        raise Stop(f"{why(call)}: the width of the padding is computed")
    padded = {rank - 1 - i: amounts[2 * i : 2 * i + 2] for i in range(len(amounts) // 2)}
    constant = call.arguments.get("mode") in ("constant", None)
    layers = []
    for layer in trace.simple(value):
        for axis, dim in enumerate(layer.dims):
            left, right = padded.get(dim, (0, 0))
            if not isinstance(left, int) or not isinstance(right, int):
                raise Stop(f"{why(call)}: the width of the padding is computed")
            if not (left or right):
                continue
            if not constant or left < 0 or right < 0:
                raise Stop(f"{why(call)} repeats or cuts channels")
            layer = Layer(layer.dims, _pad_axis(trace, layer.labels, axis, left, right))
        layers.append(layer)
    return Labels(shape, tuple(layers), call.keeps_zero([value.zero]))


def _pad_axis(trace: Trace, labels: Tensor, axis: int, left: int, right: int) -> Tensor:
    parts = [labels]
    for amount, front in ((left, True), (right, False)):
        if amount:
            shape = [*labels.shape]
            shape[axis] = amount
            new = trace.sets.fresh(torch.Size(shape).numel()).reshape(shape)
            parts = [new, *parts] if front else [*parts, new]
    return torch.cat(parts, axis)


def _channels_only(trace: Trace, call: OpCall, value: Labels, channel: int) -> list[Layer]:
    """The layers, with every dim behind the channels kept at full size."""
    inner = range(channel + 1, len(value.shape))
    layers = []
    for layer in trace.simple(value):
        dims = [dim for dim in layer.dims if dim in inner or (channel in layer.dims and dim != channel)]
        layer = trace.pin(layer, dims, why(call))
        if layer.dims:
            layers.append(layer)
    return layers
