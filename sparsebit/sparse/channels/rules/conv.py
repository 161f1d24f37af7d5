"""Convolutions: plain, transposed, grouped and depthwise, in one to three dims."""

from __future__ import annotations

from torch import Tensor

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import (
    alive,
    match,
    operand,
    product_is_zero,
    sum_product,
    to_labels,
)
from sparsebit.sparse.channels.rules.base import (
    Stop,
    add_bias,
    layer_name,
    made_by,
    number,
    read_by,
    rule,
    shape_out,
    tensor_name,
    weight_operand,
    why,
)
from sparsebit.sparse.channels.rules.contract import IN, OUT
from sparsebit.sparse.channels.trace import Trace


@rule("convolution")
def convolution(trace: Trace, call: OpCall) -> Labels:
    """New channels from all channels of the input, or from those of the same group."""
    value = trace.labels_of(call.arguments["input"])
    channel = len(value.shape) - 1 - call.spec.spatial
    spatial = range(channel + 1, len(value.shape))
    layers = [trace.pin(layer, spatial, f"{why(call)} slides over it") for layer in trace.simple(value)]
    value = Labels(value.shape, tuple(layer for layer in layers if layer.dims), value.zero)
    groups = number(call.arguments["groups"])
    if not isinstance(groups, int):
        raise Stop(f"{why(call)}: the number of groups is computed")
    if groups == 1:
        return _plain(trace, call, value, channel)
    return _grouped(trace, call, value, channel, groups)


def _plain(trace: Trace, call: OpCall, value: Labels, channel: int) -> Labels:
    made, read = call.spec.weight_axes or (0, 1)
    if value.zero and read_by(trace, call, value, channel, read):
        return made_by(trace, call, made, channel, shape_out(call))
    letters = [IN if dim == channel else dim for dim in range(len(value.shape))]
    x = operand(trace, value, letters)
    w = weight_operand(trace, call, call.arguments["weight"], {made: (OUT, "output"), read: (IN, "input")})
    kept = sum_product(trace, [x, w], [IN], why(call))
    out = [OUT if letter == IN else letter for letter in letters]
    zero = add_bias(trace, call, kept, OUT) and product_is_zero([x, w], kept)
    return to_labels(kept, out, shape_out(call), zero)


def _grouped(trace: Trace, call: OpCall, value: Labels, channel: int, groups: int) -> Labels:
    weight = tensor_name(call.arguments["weight"])
    if weight is None and groups == value.shape[channel] == shape_out(call)[channel]:
        return _computed_depthwise(trace, call, value, channel)
    if weight is None:
        raise Stop(f"{why(call)}: the weight of a grouped convolution is computed")
    rest, labels = _along(trace, call, value, channel)
    shape = shape_out(call)
    made = shape[channel]
    if call.spec.weight_axes == (1, 0):  # transposed
        out = _transposed_groups(trace, call, weight, labels, groups, value.shape[channel], made)
    else:
        out = _groups(trace, call, weight, labels, groups, value.shape[channel], made)
    layers = [*rest, *([Layer((channel,), out)] if out is not None else [])]
    zero = add_bias(trace, call, layers, channel)
    return Labels(shape, tuple(layers), zero and (value.zero or not rest))


def _computed_depthwise(trace: Trace, call: OpCall, value: Labels, channel: int) -> Labels:
    """One filter a channel, made by other operators: it goes with its channel."""
    rank = len(value.shape)
    w = weight_operand(trace, call, call.arguments["weight"], {0: (channel, "output")})
    x = operand(trace, value, range(rank))
    layers = alive(trace, match(trace, x, w, why(call)))
    zero = add_bias(trace, call, layers, channel) and product_is_zero([x, w], layers)
    return to_labels(layers, range(rank), shape_out(call), zero)


def _along(trace: Trace, call: OpCall, value: Labels, channel: int) -> tuple[list[Layer], Tensor | None]:
    """The layers beside the channels, and the labels [C] along them, or None."""
    rest: list[Layer] = []
    labels: Tensor | None = None
    for layer in value.layers:
        if channel not in layer.dims:
            rest.append(layer)
            continue
        layer = trace.pin(layer, [dim for dim in layer.dims if dim != channel], why(call))
        if labels is None and layer.dims:
            labels = layer.labels
        else:
            trace.pin(layer, layer.dims, why(call))
    return rest, labels


def _groups(
    trace: Trace, call: OpCall, weight: str, labels: Tensor | None, groups: int, width: int, made: int
) -> Tensor | None:
    name, read = layer_name(call, weight), width // groups
    out = trace.axis(weight, 0, "output", name)
    if labels is None:
        if read == 1:
            trace.freeze(
                Labels((made,), (Layer((0,), out),)), f"{why(call)} works on channels that keep their size"
            )
        else:
            trace.balance(out, groups, why(call))
        return out
    inside = trace.sets.find(labels).reshape(groups, read)
    if bool((inside == inside[:, :1]).all()):  # each group reads one channel: depthwise, or whole groups
        trace.sets.join(out.reshape(groups, -1), inside[:, :1])
        if read > 1:
            _tie_groups(trace, weight, inside, made // groups, name)
        return out
    trace.balance(labels, groups, f"{why(call)} has {groups} groups")
    trace.balance(out, groups, f"{why(call)} has {groups} groups")
    _tie_groups(trace, weight, labels.reshape(groups, read), made // groups, name)
    return out


def _tie_groups(trace: Trace, weight: str, labels: Tensor, rows: int, name: str) -> None:
    for group, part in enumerate(labels):
        trace.tie_rows(weight, 1, (group * rows, (group + 1) * rows), part.contiguous(), name)


def _transposed_groups(
    trace: Trace, call: OpCall, weight: str, labels: Tensor | None, groups: int, width: int, made: int
) -> Tensor | None:
    """The weight is [in, out / groups, ...]: one axis makes the channels of every group."""
    name, read, per = layer_name(call, weight), width // groups, made // groups
    if labels is not None and per == 1 and read == 1:
        trace.tie_axis(weight, 0, labels, "output", name)
        return labels
    if labels is not None:
        if read == 1:
            value = Labels((width,), (Layer((0,), labels),))
            trace.freeze(value, f"{why(call)} makes several channels from one")
        else:
            trace.tie_axis(weight, 0, labels, "input", name)
            trace.balance(labels, groups, f"{why(call)} has {groups} groups")
    return trace.axis(weight, 1, "output", name).repeat(groups) if per > 1 else None
