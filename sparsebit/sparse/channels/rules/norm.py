"""Norms: their factors and statistics are removed with the channels they belong to.

A norm over channels (layer norm, RMS norm, group norm within a group) computes its statistics over the remaining
channels, like the same norm of the smaller width.
"""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.match import Operand, product_is_zero, to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, number, pick, rule, tensor_name

# With fewer, removing complete groups is too coarse: every group loses as many channels.
FEWEST_COMPLETE_GROUPS = 4


@rule("norm_per_channel")
def norm_per_channel(at: Visit) -> Labels:
    """Statistics of one channel at a time."""
    value = at.input
    channel = norm_channel(at.call, value.rank)
    layers = []
    for layer in at.trace.simple(value):
        if channel in layer.dims or "use_input_stats" in at.arguments:
            layer = at.pin(layer, [dim for dim in range(value.rank) if dim != channel])
        else:  # weights standardized over their inputs
            at.trace.statistics[at.call.node.name] = at.why
        layers += [layer] if layer.dims else []
    for name in ("running_mean", "running_var"):
        at.tie_vector(at.arguments.get(name), pick(layers, channel), "state")
    return Labels(value.shape, layers, _tie_factors(at, layers, channel))


def _tie_factors(at: Visit, layers: list[Family], channel: int) -> bool:
    """Tie factor and shift to the channels; True if they make removed channels zero."""
    labels = pick(layers, channel)
    scaled = at.tie_vector(at.arguments.get("weight"), labels, "scale")
    shifted = at.tie_vector(at.arguments.get("bias"), labels, "state")
    affine = at.arguments.get("weight") is not None
    return affine and scaled and shifted and all(layer.dims == (channel,) for layer in layers)


@rule("norm_over_channels")
def norm_over_channels(at: Visit) -> Labels:
    """Statistics over the last dims."""
    value, normalized = at.input, at.arguments["normalized_shape"]
    count = len(normalized) if isinstance(normalized, (tuple, list, torch.Size)) else 1
    inner = range(value.rank - count, value.rank)
    layers = []
    for layer in at.trace.simple(value):
        inside = [dim for dim in layer.dims if dim in inner]
        if inside and len(inside) < len(layer.dims):  # heads and their dims: the heads stay free
            layer = at.pin(layer, inside)
        elif inside:
            at.trace.statistics[at.call.node.name] = at.why
        layers += [layer] if layer.dims else []
    extents = {dim: size for dim, size in enumerate(value.shape) if size > 1}
    result, factors = Operand(layers, extents), dict[str, Operand]()
    for name in ("weight", "bias"):
        argument = at.arguments.get(name)
        if argument is None:
            continue
        held = tensor_name(argument)
        for axis, size in enumerate(at.call.shape(name)) if held is not None else ():
            if size > 1:
                role = "scale" if name == "weight" else "state"
                at.trace.axis(str(held), axis, role, at.layer_name(str(held)))  # type: ignore[arg-type]
        factors[name] = at.operand(at.trace.labels_of(argument), inner)
        result = at.match(result, factors[name])
    found = at.alive(result)
    # a row of zeros is normalized to zeros; a channel among others is not, but its factor makes it zero
    rows = Operand([], {dim: size for dim, size in extents.items() if dim not in inner}, value.zero)
    bias = factors.pop("bias", None)
    zero = product_is_zero([rows, *factors.values()], found)
    return to_labels(
        found, range(value.rank), value.shape, zero and (bias is None or all(map(bias.zero_at, found)))
    )


@rule("group_norm")
def group_norm(at: Visit) -> Labels:
    """Statistics over the channels of a group: complete groups are removed, or as many channels of each."""
    value, groups = at.input, number(at.arguments["num_groups"])
    if not isinstance(groups, int):
        raise Stop(f"{at.why}: the number of groups is computed")
    for layer in at.trace.simple(value):
        at.pin(layer, [dim for dim in layer.dims if dim > 1 or (dim != 1 and 1 in layer.dims)])
    layers = at.trace.simple(value)
    labels = pick(layers, 1)
    if labels is not None:
        at.trace.statistics[at.call.node.name] = at.why
        if groups >= FEWEST_COMPLETE_GROUPS:
            at.pin(Family((0, 1), labels.reshape(groups, -1)), [1])
        elif groups > 1:
            at.trace.balance(labels, groups, f"{at.why} has {groups} groups")
    return Labels(value.shape, layers, _tie_factors(at, layers, 1))


@rule("normalize")
def normalize(at: Visit) -> Labels:
    """Division by a p-norm, to which removed channels add nothing if they are zero."""
    value = at.input
    for layer in at.trace.simple(value):
        if len(layer.dims) > 1 or not value.zero:
            at.pin(layer, [at.dim(value.rank)])
    return Labels(value.shape, at.trace.simple(value), value.zero)


@rule("weight_norm")
def weight_norm(at: Visit) -> Labels:
    """A direction and a length per row: only rows can be removed."""
    value, length = at.input, at.labels("g")
    others = [axis for axis in range(value.rank) if axis != at.dim(value.rank)]
    layers = at.pinned(value, others, f"{at.why} is a norm over it")
    if layers:
        at.trace.statistics[at.call.node.name] = at.why
    direction = at.operand(Labels(value.shape, layers), range(value.rank))
    both = at.match(direction, at.aligned(length, length.rank))
    return to_labels(both.layers, range(value.rank), at.shape, zero=True)


def norm_channel(call: OpCall, rank: int) -> int:
    """The dim of the channels: the first if an instance norm is called without a batch, else the second."""
    name = type(call.module).__name__
    unbatched = name.startswith("InstanceNorm") and name[-2:-1].isdigit() and rank == int(name[-2]) + 1
    return 0 if unbatched else 1
