"""Norms: their factors and statistics go with the channels they belong to.

A norm over channels (layer norm, RMS norm, group norm within a group) takes its statistics over the channels
that are left, as the same norm of the smaller width does.
"""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import (
    Operand,
    aligned,
    alive,
    match,
    operand,
    product_is_zero,
    to_labels,
)
from sparsebit.sparse.channels.rules.base import (
    Stop,
    dim_of,
    input_of,
    layer_name,
    number,
    pick,
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
    value = input_of(trace, call)
    channel = norm_channel(call, value.rank)
    layers = []
    for layer in trace.simple(value):
        if channel in layer.dims or "use_input_stats" in call.arguments:
            layer = trace.pin(layer, [dim for dim in range(value.rank) if dim != channel], why(call))
        else:  # weights standardized over their inputs
            trace.statistics[call.node.name] = why(call)
        layers += [layer] if layer.dims else []
    for name in ("running_mean", "running_var"):
        tie_vector(trace, call, call.arguments.get(name), pick(layers, channel), "state")
    return Labels(value.shape, layers, _tie_factors(trace, call, layers, channel))


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
    value, normalized = input_of(trace, call), call.arguments["normalized_shape"]
    count = len(normalized) if isinstance(normalized, (tuple, list, torch.Size)) else 1
    inner = range(value.rank - count, value.rank)
    layers = []
    for layer in trace.simple(value):
        inside = [dim for dim in layer.dims if dim in inner]
        if inside and len(inside) < len(layer.dims):  # heads and their dims: the heads stay free
            layer = trace.pin(layer, inside, why(call))
        elif inside:
            trace.statistics[call.node.name] = why(call)
        layers += [layer] if layer.dims else []
    extents = {dim: size for dim, size in enumerate(value.shape) if size > 1}
    result, factors = Operand(layers, extents), dict[str, Operand]()
    for name in ("weight", "bias"):
        argument = call.arguments.get(name)
        if argument is None:
            continue
        held = tensor_name(argument)
        for axis, size in enumerate(call.shape(name)) if held is not None else ():
            if size > 1:
                role = "scale" if name == "weight" else "state"
                trace.axis(str(held), axis, role, layer_name(call, str(held)))  # type: ignore[arg-type]
        factors[name] = operand(trace, trace.labels_of(argument), inner)
        result = match(trace, result, factors[name], why(call))
    found = alive(trace, result)
    # a row of zeros is normalized to zeros; a channel among others is not, but its factor makes it zero
    rows = Operand([], {dim: size for dim, size in extents.items() if dim not in inner}, value.zero)
    bias = factors.pop("bias", None)
    zero = product_is_zero([rows, *factors.values()], found)
    return to_labels(
        found, range(value.rank), value.shape, zero and (bias is None or all(map(bias.zero_at, found)))
    )


@rule("group_norm")
def group_norm(trace: Trace, call: OpCall) -> Labels:
    """Statistics over the channels of a group: whole groups go, or as many channels of each."""
    value, groups = input_of(trace, call), number(call.arguments["num_groups"])
    if not isinstance(groups, int):
        raise Stop(f"{why(call)}: the number of groups is computed")
    for layer in trace.simple(value):
        trace.pin(layer, [dim for dim in layer.dims if dim > 1 or (dim != 1 and 1 in layer.dims)], why(call))
    layers = trace.simple(value)
    labels = pick(layers, 1)
    if labels is not None:
        trace.statistics[call.node.name] = why(call)
        if groups >= FEWEST_WHOLE_GROUPS:
            trace.pin(Layer((0, 1), labels.reshape(groups, -1)), [1], why(call))
        elif groups > 1:
            trace.balance(labels, groups, f"{why(call)} has {groups} groups")
    return Labels(value.shape, layers, _tie_factors(trace, call, layers, 1))


@rule("normalize")
def normalize(trace: Trace, call: OpCall) -> Labels:
    """Division by a p-norm, to which removed channels add nothing if they are zero."""
    value = input_of(trace, call)
    at = dim_of(call, value.rank)
    for layer in trace.simple(value):
        if len(layer.dims) > 1 or not value.zero:
            trace.pin(layer, [at], why(call))
    return Labels(value.shape, trace.simple(value), value.zero)


@rule("weight_norm")
def weight_norm(trace: Trace, call: OpCall) -> Labels:
    """A direction and a length a row: only the rows can go."""
    value, length = input_of(trace, call), trace.labels_of(call.arguments["g"])
    at = dim_of(call, value.rank)
    others = [axis for axis in range(value.rank) if axis != at]
    layers = trace.pinned(value, others, f"{why(call)} is a norm over it")
    if layers:
        trace.statistics[call.node.name] = why(call)
    direction = operand(trace, Labels(value.shape, layers), range(value.rank))
    both = match(trace, direction, aligned(trace, length, length.rank), why(call))
    return to_labels(both.layers, range(value.rank), shape_out(call), zero=True)


def norm_channel(call: OpCall, rank: int) -> int:
    """The dim of the channels: the first where an instance norm is called without a batch, else the second."""
    name = type(call.module).__name__
    unbatched = name.startswith("InstanceNorm") and name[-2:-1].isdigit() and rank == int(name[-2]) + 1
    return 0 if unbatched else 1
