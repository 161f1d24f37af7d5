"""Convolutions: plain, transposed, grouped and depthwise, in one to three dims."""

from __future__ import annotations

from torch import Tensor

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import (
    aligned,
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
    input_of,
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
    value, groups = input_of(trace, call), number(call.arguments["groups"])
    if not isinstance(groups, int):
        raise Stop(f"{why(call)}: the number of groups is computed")
    channel = value.rank - 1 - call.spec.spatial
    layers = trace.pinned(value, range(channel + 1, value.rank), f"{why(call)} slides over it")
    value = Labels(value.shape, layers, value.zero)
    weight = tensor_name(call.arguments["weight"])
    if groups == 1:
        return _plain(trace, call, value, channel)
    if weight is not None:
        return _grouped(trace, call, weight, value, channel, groups)
    if groups == value.shape[channel] == shape_out(call)[channel]:
        return _computed_depthwise(trace, call, value, channel)
    raise Stop(f"{why(call)}: the weight of a grouped convolution is computed")


def _plain(trace: Trace, call: OpCall, value: Labels, channel: int) -> Labels:
    made, read = call.spec.weight_axes or (0, 1)
    if value.zero and read_by(trace, call, value, channel, read):
        return made_by(trace, call, made, channel, shape_out(call))
    letters = list(range(value.rank))
    letters[channel] = IN
    x = operand(trace, value, letters)
    w = weight_operand(trace, call, call.arguments["weight"], {made: (OUT, "output"), read: (IN, "input")})
    kept = sum_product(trace, [x, w], [IN], why(call))
    zero = add_bias(trace, call, kept, OUT) and product_is_zero([x, w], kept)
    letters[channel] = OUT
    return to_labels(kept, letters, shape_out(call), zero)


def _computed_depthwise(trace: Trace, call: OpCall, value: Labels, channel: int) -> Labels:
    """One filter a channel, made by other operators: it goes with its channel."""
    w = weight_operand(trace, call, call.arguments["weight"], {0: (channel, "output")})
    x = aligned(trace, value, value.rank)
    layers = alive(trace, match(trace, x, w, why(call)))
    zero = add_bias(trace, call, layers, channel) and product_is_zero([x, w], layers)
    return to_labels(layers, range(value.rank), shape_out(call), zero)


def _grouped(trace: Trace, call: OpCall, weight: str, value: Labels, channel: int, groups: int) -> Labels:
    rest = [layer for layer in value.layers if channel not in layer.dims]
    labels: Tensor | None = None
    for layer in value.layers:
        if channel in layer.dims:
            layer = trace.pin(layer, [dim for dim in layer.dims if dim != channel], why(call))
            if labels is None and layer.dims:
                labels = layer.labels
            else:
                trace.pin(layer, layer.dims, why(call))
    shape = shape_out(call)
    tie = _tie_transposed_groups if call.spec.weight_axes == (1, 0) else _tie_groups
    out = tie(trace, call, weight, labels, groups, value.shape[channel], shape[channel])
    layers = [*rest, *([Layer((channel,), out)] if out is not None else [])]
    zero = add_bias(trace, call, layers, channel)
    return Labels(shape, layers, zero and (value.zero or not rest))


def _tie_groups(
    trace: Trace, call: OpCall, weight: str, labels: Tensor | None, groups: int, width: int, made: int
) -> Tensor | None:
    """The labels of the result, which the weight [out, in / groups, ...] makes; None where its size is fixed."""
    name, read = layer_name(call, weight), width // groups
    out = trace.axis(weight, 0, "output", name)
    if labels is None and read == 1:
        trace.frozen.append((out, f"{why(call)} works on channels that keep their size"))
    elif labels is None:
        trace.balance(out, groups, why(call))
    else:
        inside = trace.sets.find(labels).reshape(groups, read)
        if bool((inside == inside[:, :1]).all()):  # each group reads one channel: depthwise, or whole groups
            trace.sets.join(out.reshape(groups, -1), inside[:, :1])
        else:
            trace.balance(labels, groups, f"{why(call)} has {groups} groups")
            trace.balance(out, groups, f"{why(call)} has {groups} groups")
        rows = made // groups
        for group, part in enumerate(labels.reshape(groups, read) if read > 1 else ()):
            trace.tie_rows(weight, 1, (group * rows, (group + 1) * rows), part.contiguous(), name)
    return out


def _tie_transposed_groups(
    trace: Trace, call: OpCall, weight: str, labels: Tensor | None, groups: int, width: int, made: int
) -> Tensor | None:
    """The same for a weight [in, out / groups, ...]: one axis makes the channels of every group."""
    name, read, per = layer_name(call, weight), width // groups, made // groups
    if labels is not None and per == 1 and read == 1:
        trace.tie_axis(weight, 0, labels, "output", name)
        return labels
    if labels is not None and read == 1:
        trace.frozen.append((labels, f"{why(call)} makes several channels from one"))
    elif labels is not None:
        trace.tie_axis(weight, 0, labels, "input", name)
        trace.balance(labels, groups, f"{why(call)} has {groups} groups")
    return trace.axis(weight, 1, "output", name).repeat(groups) if per > 1 else None
