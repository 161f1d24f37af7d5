"""Convolutions: plain, transposed, grouped and depthwise, in one to three dims."""

from __future__ import annotations

from torch import Tensor

from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.match import product_is_zero, to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, number, rule, tensor_name
from sparsebit.sparse.channels.rules.contract import IN, OUT


@rule("convolution")
def convolution(at: Visit) -> Labels:
    """New channels from all channels of the input, or from those of the same group."""
    value, groups = at.input, number(at.arguments["groups"])
    if not isinstance(groups, int):
        raise Stop(f"{at.why}: the number of groups is computed")
    channel = value.rank - 1 - at.call.spec.spatial
    families = at.pinned(value, range(channel + 1, value.rank), f"{at.why} slides over it")
    value = Labels(value.shape, families, value.zero)
    weight = tensor_name(at.arguments["weight"])
    if groups == 1:
        return _plain(at, value, channel)
    if weight is not None:
        return _grouped(at, weight, value, channel, groups)
    if groups == value.shape[channel] == at.shape[channel]:
        return _computed_depthwise(at, value, channel)
    raise Stop(f"{at.why}: the weight of a grouped convolution is computed")


def _plain(at: Visit, value: Labels, channel: int) -> Labels:
    made, read = at.call.spec.weight_axes or (0, 1)
    if value.zero and at.reads(value, channel, read):
        return at.makes(made, channel)
    letters = list(range(value.rank))
    letters[channel] = IN
    x = at.operand(value, letters)
    w = at.weight(at.arguments["weight"], {made: (OUT, "output"), read: (IN, "input")})
    kept = at.sum_product([x, w], [IN])
    zero = at.add_bias(kept, OUT) and product_is_zero([x, w], kept)
    letters[channel] = OUT
    return to_labels(kept, letters, at.shape, zero)


def _computed_depthwise(at: Visit, value: Labels, channel: int) -> Labels:
    """One filter per channel, computed by other operators: it is removed with its channel."""
    w = at.weight(at.arguments["weight"], {0: (channel, "output")})
    x = at.aligned(value, value.rank)
    families = at.alive(at.match(x, w))
    zero = at.add_bias(families, channel) and product_is_zero([x, w], families)
    return to_labels(families, range(value.rank), at.shape, zero)


def _grouped(at: Visit, weight: str, value: Labels, channel: int, groups: int) -> Labels:
    rest = [family for family in value.families if channel not in family.dims]
    labels: Tensor | None = None
    for family in value.families:
        if channel in family.dims:
            family = at.pin(family, [dim for dim in family.dims if dim != channel])
            if labels is None and family.dims:
                labels = family.labels
            else:
                at.pin(family, family.dims)
    tie = _tie_transposed_groups if at.call.spec.weight_axes == (1, 0) else _tie_groups
    out = tie(at, weight, labels, groups, value.shape[channel], at.shape[channel])
    families = [*rest, *([Family((channel,), out)] if out is not None else [])]
    zero = at.add_bias(families, channel)
    return Labels(at.shape, families, zero and (value.zero or not rest))


def _tie_groups(
    at: Visit, weight: str, labels: Tensor | None, groups: int, width: int, made: int
) -> Tensor | None:
    """The labels of the result, computed with the weight [out, in / groups, ...]; None if its size is fixed."""
    trace, name, read = at.trace, at.layer_name(weight), width // groups
    out = trace.axis(weight, 0, "output", name)
    if labels is None and read == 1:
        trace.frozen.append((out, f"{at.why} works on channels that keep their size"))
    elif labels is None:
        trace.balance(out, groups, at.why)
    else:
        inside = trace.sets.find(labels).reshape(groups, read)
        # each group reads one channel: depthwise, or complete groups
        if bool((inside == inside[:, :1]).all()):
            trace.sets.join(out.reshape(groups, -1), inside[:, :1])
        else:
            trace.balance(labels, groups, f"{at.why} has {groups} groups")
            trace.balance(out, groups, f"{at.why} has {groups} groups")
        rows = made // groups
        for group, part in enumerate(labels.reshape(groups, read) if read > 1 else ()):
            trace.tie_rows(weight, 1, (group * rows, (group + 1) * rows), part.contiguous(), name)
    return out


def _tie_transposed_groups(
    at: Visit, weight: str, labels: Tensor | None, groups: int, width: int, made: int
) -> Tensor | None:
    """The same for a weight [in, out / groups, ...]: one axis has the output channels of every group."""
    trace, name, read, per = at.trace, at.layer_name(weight), width // groups, made // groups
    if labels is not None and per == 1 and read == 1:
        trace.tie_axis(weight, 0, labels, "output", name)
        return labels
    if labels is not None and read == 1:
        trace.frozen.append((labels, f"{at.why} computes several channels from one"))
    elif labels is not None:
        trace.tie_axis(weight, 0, labels, "input", name)
        trace.balance(labels, groups, f"{at.why} has {groups} groups")
    return trace.axis(weight, 1, "output", name).repeat(groups) if per > 1 else None
