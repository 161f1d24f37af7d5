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
    families = []
    for family in at.trace.simple(value):
        if channel in family.dims or "use_input_stats" in at.arguments:
            family = at.pin(family, [dim for dim in range(value.rank) if dim != channel])
        else:  # weights standardized over their inputs
            at.trace.statistics[at.call.node.name] = at.why
        families += [family] if family.dims else []
    for name in ("running_mean", "running_var"):
        at.tie_vector(at.arguments.get(name), pick(families, channel), "state")
    return Labels(value.shape, families, _tie_factors(at, families, channel))


def _tie_factors(at: Visit, families: list[Family], channel: int) -> bool:
    """Tie factor and shift to the channels; True if they make removed channels zero."""
    labels = pick(families, channel)
    scaled = at.tie_vector(at.arguments.get("weight"), labels, "scale")
    shifted = at.tie_vector(at.arguments.get("bias"), labels, "state")
    affine = at.arguments.get("weight") is not None
    return affine and scaled and shifted and all(family.dims == (channel,) for family in families)


@rule("norm_over_channels")
def norm_over_channels(at: Visit) -> Labels:
    """Statistics over the last dims."""
    value, normalized = at.input, at.arguments["normalized_shape"]
    count = len(normalized) if isinstance(normalized, (tuple, list, torch.Size)) else 1
    inner = range(value.rank - count, value.rank)
    families = []
    for family in at.trace.simple(value):
        inside = [dim for dim in family.dims if dim in inner]
        if inside and len(inside) < len(family.dims):  # heads and their dims: the heads stay free
            family = at.pin(family, inside)
        elif inside:
            at.trace.statistics[at.call.node.name] = at.why
        families += [family] if family.dims else []
    extents = {dim: size for dim, size in enumerate(value.shape) if size > 1}
    result, factors = Operand(families, extents), dict[str, Operand]()
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
    for family in at.trace.simple(value):
        at.pin(family, [dim for dim in family.dims if dim > 1 or (dim != 1 and 1 in family.dims)])
    families = at.trace.simple(value)
    labels = pick(families, 1)
    if labels is not None:
        at.trace.statistics[at.call.node.name] = at.why
        if groups >= FEWEST_COMPLETE_GROUPS:
            at.pin(Family((0, 1), labels.reshape(groups, -1)), [1])
        elif groups > 1:
            at.trace.balance(labels, groups, f"{at.why} has {groups} groups")
    return Labels(value.shape, families, _tie_factors(at, families, 1))


@rule("normalize")
def normalize(at: Visit) -> Labels:
    """Division by a p-norm, to which removed channels add nothing if they are zero."""
    value = at.input
    for family in at.trace.simple(value):
        if len(family.dims) > 1 or not value.zero:
            at.pin(family, [at.dim(value.rank)])
    return Labels(value.shape, at.trace.simple(value), value.zero)


@rule("weight_norm")
def weight_norm(at: Visit) -> Labels:
    """A direction and a length per row: only rows can be removed."""
    value, length = at.input, at.labels("g")
    others = [axis for axis in range(value.rank) if axis != at.dim(value.rank)]
    families = at.pinned(value, others, f"{at.why} is a norm over it")
    if families:
        at.trace.statistics[at.call.node.name] = at.why
    direction = at.operand(Labels(value.shape, families), range(value.rank))
    both = at.match(direction, at.aligned(length, length.rank))
    return to_labels(both.families, range(value.rank), at.shape, zero=True)


def norm_channel(call: OpCall, rank: int) -> int:
    """The dim of the channels: the first if an instance norm is called without a batch, else the second."""
    name = type(call.module).__name__
    unbatched = name.startswith("InstanceNorm") and name[-2:-1].isdigit() and rank == int(name[-2]) + 1
    return 0 if unbatched else 1
