"""Operators that only move elements: run them on the labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_aggregate

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Labels, Layer, layer_of, reshape_layer
from sparsebit.sparse.channels.match import aligned, alive, match, to_labels
from sparsebit.sparse.channels.rules.base import (
    Stop,
    dim_of,
    input_of,
    integer,
    outputs,
    rule,
    shape_out,
    why,
)
from sparsebit.sparse.channels.trace import Trace


@rule("move")
def move(trace: Trace, call: OpCall) -> object:
    """Gives the same elements for the labels as for the data, and can be given smaller sizes afterwards."""
    return _move(trace, call, input_of(trace, call))


@rule("pick")
def pick_positions(trace: Trace, call: OpCall) -> object:
    """The same where single positions are taken from a dim."""
    value = input_of(trace, call)
    return _move(trace, call, keep_picked_dims(trace, value, [dim_of(call, value.rank, 0)], call))


@rule("reshape")
def reshape(trace: Trace, call: OpCall) -> object:
    """The same elements in the same order."""
    value, shape = input_of(trace, call), shape_out(call)
    return _move(trace, call, value, lambda layer: [reshape_layer(layer, value.shape, shape)])


@rule("reshape_as")
def reshape_as(trace: Trace, call: OpCall) -> Labels:
    """The same elements in the size of another tensor: both can only shrink together."""
    value, other, shape = input_of(trace, call), call.arguments["other"], shape_out(call)
    layers = [reshape_layer(layer, value.shape, shape) for layer in trace.simple(value)]
    moved = aligned(trace, Labels(shape, layers), len(shape))
    tied = match(trace, moved, aligned(trace, trace.labels_of(other), len(shape), other), why(call))
    return to_labels(alive(trace, tied), range(len(shape)), shape, value.zero)


@rule("expand")
def expand(trace: Trace, call: OpCall) -> object:
    """Copies made along new dims can go one by one: they hold nothing of their own, and are not zero."""
    value, shape = input_of(trace, call), shape_out(call)
    old = (1,) * (len(shape) - value.rank) + value.shape
    copies = [
        Layer((dim,), trace.sets.fresh(size)) for dim, size in enumerate(shape) if size > 1 and old[dim] == 1
    ]
    value = replace(value, zero=value.zero and not copies)
    return _move(trace, call, value, None, *([one] for one in copies))


def _move(
    trace: Trace,
    call: OpCall,
    value: Labels,
    through: Callable[[Layer], list[Layer]] | None = None,
    *more: list[Layer],
) -> object:
    """Each layer through the operator, by default by running it; every result takes its part of each."""
    through = through or (lambda layer: _run(trace, call, value, layer))
    results = [*(through(layer) for layer in trace.simple(value)), *more]
    position = itertools.count()

    def build(info: TensorInfo) -> Labels:
        index = next(position)  # layers that no longer vary are kept: one channel is all
        return Labels(
            info.shape, [found[index] for found in results] if 0 not in info.shape else (), value.zero
        )

    return outputs(call, build)


def _run(trace: Trace, call: OpCall, value: Labels, layer: Layer) -> list[Layer]:
    result = run_node(trace, call, call.arguments["input"], layer.full(value.shape))
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
    """Where single positions are picked from a dim, layers that also vary elsewhere keep the size of that dim."""
    for layer in trace.simple(value):
        if any(dim not in dims for dim in layer.dims):
            trace.pin(layer, dims, why(call))
    return replace(value, layers=trace.simple(value))


@rule("channel_shuffle")
def channel_shuffle(trace: Trace, call: OpCall) -> Labels:
    """As a view [groups, n], transposed: the same positions of every group."""
    groups = integer(call, "groups")

    def shuffle(labels: Tensor) -> Tensor:
        table = labels.reshape(groups, -1)
        trace.pin(Layer((0, 1), table), [0], why(call))
        return table.t().reshape(-1)

    return _along_channels(trace, call, 1, shuffle)


@rule("pixel_shuffle")
def pixel_shuffle(trace: Trace, call: OpCall) -> Labels:
    """Channels become positions: those of one new channel go together; or positions become channels."""
    up = "upscale_factor" in call.arguments
    area = integer(call, "upscale_factor" if up else "downscale_factor") ** 2

    def spread(labels: Tensor) -> Tensor:
        if not up:
            return labels.repeat_interleave(area)
        trace.pin(Layer((0, 1), labels.reshape(-1, area)), [1], why(call))
        return labels[::area]

    return _along_channels(trace, call, input_of(trace, call).rank - 3, spread)


@rule("im2col")
def im2col(trace: Trace, call: OpCall) -> Labels:
    """Every channel becomes as many rows as the kernel has positions."""
    value = input_of(trace, call)
    at = value.rank - 3
    times = shape_out(call)[at] // value.shape[at]
    return _along_channels(trace, call, at, lambda labels: labels.repeat_interleave(times))


def _along_channels(trace: Trace, call: OpCall, channel: int, change: Callable[[Tensor], Tensor]) -> Labels:
    """The result of an operator that rearranges channels; every dim behind them keeps its size."""
    value = input_of(trace, call)
    for layer in trace.simple(value):
        apart = [dim for dim in layer.dims if dim > channel or (channel in layer.dims and dim != channel)]
        trace.pin(layer, apart, why(call))
    layers = [
        Layer(layer.dims, change(layer.labels)) if layer.dims == (channel,) else layer
        for layer in trace.simple(value)
    ]
    return Labels(shape_out(call), layers, value.zero)


@rule("pad")
def pad(trace: Trace, call: OpCall) -> Labels:
    """Constant padding along channels adds some that hold nothing and can go like any other."""
    value, amounts = input_of(trace, call), call.arguments["pad"]
    if isinstance(amounts, int):
        amounts = (amounts,) * 2 * (value.rank - 2)
    if not isinstance(amounts, (tuple, list)):
        raise Stop(f"{why(call)}: the width of the padding is computed")
    padded = {value.rank - 1 - i: amounts[2 * i : 2 * i + 2] for i in range(len(amounts) // 2)}
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
    return Labels(shape_out(call), layers, call.keeps_zero([value.zero]))


def _pad_axis(trace: Trace, labels: Tensor, axis: int, left: int, right: int) -> Tensor:
    parts = [labels]
    for amount, front in ((left, True), (right, False)):
        if amount:
            shape = [*labels.shape]
            shape[axis] = amount
            new = trace.sets.fresh(torch.Size(shape).numel()).reshape(shape)
            parts = [new, *parts] if front else [*parts, new]
    return torch.cat(parts, axis)
