"""Norms: their factors and statistics go with the channels they belong to.

A norm over channels (layer norm, RMS norm, group norm within a group) takes its statistics over the channels
that are left, as the same norm of the smaller width does.
"""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import Operand, alive, match, operand, product_is_zero, to_labels
from sparsebit.sparse.channels.rules.base import (
    Stop,
    layer_name,
    number,
    pick,
    positive,
    rule,
    shape_out,
    tensor_name,
    tie_vector,
    why,
)
from sparsebit.sparse.channels.trace import Trace

FEWEST_WHOLE_GROUPS = 4  # below, removing whole groups would be too coarse, so each keeps as many channels


@rule("norm_per_channel")
def norm_per_channel(trace: Trace, call: OpCall) -> Labels:
    """Statistics of one channel at a time."""
    value = trace.labels_of(call.arguments["input"])
    channel = norm_channel(call, len(value.shape))
    dims = [dim for dim in range(len(value.shape)) if dim != channel]
    layers = []
    for layer in trace.simple(value):
        if channel in layer.dims or "use_input_stats" in call.arguments:
            layer = trace.pin(layer, dims, why(call))
        elif layer.dims:  # weights standardized over their inputs
            trace.statistics[call.node.name] = why(call)
        if layer.dims:
            layers.append(layer)
    labels = pick(layers, channel)
    for name in ("running_mean", "running_var"):
        tie_vector(trace, call, call.arguments.get(name), labels, "state")
    return Labels(value.shape, tuple(layers), _tie_factors(trace, call, layers, channel))


def _tie_factors(trace: Trace, call: OpCall, layers: list[Layer], channel: int) -> bool:
    """Tie factor and shift to the channels; True if they make removed channels zero."""
    labels = pick(layers, channel)
    scaled = tie_vector(trace, call, call.arguments.get("weight"), labels, "scale")
    shifted = tie_vector(trace, call, call.arguments.get("bias"), labels, "state")
    affine = call.arguments.get("weight") is not None
    return affine and scaled and shifted and all(layer.dims == (channel,) for layer in layers)


@rule("norm_over_channels")
def norm_over_channels(trace: Trace, call: OpCall) -> Labels:
    """Statistics over the last dims."""
    value = trace.labels_of(call.arguments["input"])
    rank, normalized = len(value.shape), call.arguments["normalized_shape"]
    count = len(normalized) if isinstance(normalized, (tuple, list, torch.Size)) else 1
    inner = range(rank - count, rank)
    layers = []
    for layer in trace.simple(value):
        inside = [dim for dim in layer.dims if dim in inner]
        if inside and len(inside) < len(layer.dims):  # heads and their dims: the heads stay free
            layer = trace.pin(layer, inside, why(call))
        elif inside:
            trace.statistics[call.node.name] = why(call)
        if layer.dims:
            layers.append(layer)
    extents = {dim: size for dim, size in enumerate(value.shape) if size > 1}
    result = Operand(layers, extents, value.zero)
    factors: dict[str, Operand] = {}
    for name in ("weight", "bias"):
        argument = call.arguments.get(name)
        if argument is None:
            continue
        held = tensor_name(argument)
        if held is not None:
            for axis, size in enumerate(call.shape(name)):
                if size > 1:
                    role = "scale" if name == "weight" else "state"
                    trace.axis(held, axis, role, layer_name(call, held))  # type: ignore[arg-type]
        factors[name] = operand(trace, trace.labels_of(argument), inner)
        result = match(trace, result, factors[name], why(call))
    found = alive(trace, result)
    # a row of zeros is normalized to zeros; a channel among others is not, but its factor makes it zero
    rows = Operand([], {dim: size for dim, size in extents.items() if dim not in inner}, value.zero)
    bias = factors.pop("bias", None)
    zero = product_is_zero([rows, *factors.values()], found)
    zero = zero and (bias is None or all(map(bias.zero_at, found)))
    return to_labels(found, range(rank), value.shape, zero)


@rule("group_norm")
def group_norm(trace: Trace, call: OpCall) -> Labels:
    """Statistics over the channels of a group: whole groups go, or as many channels of each."""
    value = trace.labels_of(call.arguments["input"])
    groups = number(call.arguments["num_groups"])
    if not isinstance(groups, int):
        raise Stop(f"{why(call)}: the number of groups is computed")
    dims = [dim for dim in range(len(value.shape)) if dim != 1]
    layers = [
        trace.pin(layer, [d for d in dims if d > 1 or 1 in layer.dims], why(call))
        for layer in trace.simple(value)
    ]
    layers = [layer for layer in layers if layer.dims]
    labels = pick(layers, 1)
    if labels is not None:
        trace.statistics[call.node.name] = why(call)
    if labels is not None and groups >= FEWEST_WHOLE_GROUPS:
        trace.pin(Layer((0, 1), labels.reshape(groups, -1)), [1], why(call))
    elif labels is not None and groups > 1:
        trace.balance(labels, groups, f"{why(call)} has {groups} groups")
    return Labels(value.shape, tuple(layers), _tie_factors(trace, call, layers, 1))


@rule("normalize")
def normalize(trace: Trace, call: OpCall) -> Labels:
    """Division by a p-norm, to which removed channels add nothing if they are zero."""
    value = trace.labels_of(call.arguments["input"])
    dim = call.arguments["dim"]
    if not isinstance(dim, int):
        raise Stop(why(call))
    at = positive(dim, len(value.shape))
    layers = []
    for layer in trace.simple(value):
        if at in layer.dims and (len(layer.dims) > 1 or not value.zero):
            layer = trace.pin(layer, [at], why(call))
        layers.append(layer)
    return Labels(value.shape, tuple(layer for layer in layers if layer.dims), value.zero)


@rule("weight_norm")
def weight_norm(trace: Trace, call: OpCall) -> Labels:
    """A direction and a length a row: only the rows can go."""
    dim = call.arguments.get("dim")
    value = trace.labels_of(call.arguments["input"])
    if not isinstance(dim, int):
        raise Stop(why(call))
    at = positive(dim, len(value.shape))
    others = [axis for axis in range(len(value.shape)) if axis != at]
    layers = [trace.pin(layer, others, f"{why(call)} is a norm over it") for layer in trace.simple(value)]
    if any(layer.dims for layer in layers):
        trace.statistics[call.node.name] = why(call)
    length = trace.labels_of(call.arguments["g"])
    both = match(
        trace,
        operand(trace, Labels(value.shape, tuple(x for x in layers if x.dims)), range(len(value.shape))),
        operand(trace, length, range(len(length.shape))),
        why(call),
    )
    return to_labels(both.layers, range(len(value.shape)), shape_out(call), zero=True)


def norm_channel(call: OpCall, rank: int) -> int:
    """The dim of the channels: the first where an instance norm is called without a batch, else the second."""
    name = type(call.module).__name__
    unbatched = name.startswith("InstanceNorm") and name[-2:-1].isdigit() and rank == int(name[-2]) + 1
    return 0 if unbatched else 1
