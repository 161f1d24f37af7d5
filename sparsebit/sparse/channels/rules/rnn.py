"""Recurrent layers: hidden units own their gates, their state and their part of the output."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import aligned, match
from sparsebit.sparse.channels.rules.base import Stop, outputs, rule, tensor_name, why
from sparsebit.sparse.channels.trace import Trace, blank, labels_in


@rule("recurrent")
def recurrent(trace: Trace, call: OpCall) -> object:
    """Stacked, bidirectional, projected; as many channels must stay in every layer and direction."""
    module = call.module
    if not isinstance(module, nn.RNNBase):
        raise Stop(f"{why(call)}: the functional form")
    path = str(call.node.target)
    gates = call.owner.get_parameter(f"{path}.weight_ih_l0").shape[0] // module.hidden_size
    directions = 2 if module.bidirectional else 1
    below = _inputs(trace, call, call.arguments["input"])
    hidden: list[Tensor] = []
    shown: list[Tensor] = []
    for layer in range(module.num_layers):
        made = []
        for suffix in ("", "_reverse")[:directions]:
            end = f"_l{layer}{suffix}"
            recurrent_units, out = _units(trace, module, path, end)
            hidden.append(recurrent_units)
            shown.append(out)
            made.append(out)
            rows = recurrent_units.repeat(gates)
            trace.tie_axis(f"{path}.weight_ih{end}", 0, rows, "output", path)
            trace.tie_axis(f"{path}.weight_hh{end}", 0, rows, "output", path)
            trace.tie_axis(f"{path}.weight_hh{end}", 1, out, "input", path)
            if module.bias:
                for bias in ("bias_ih", "bias_hh"):
                    trace.tie_axis(f"{path}.{bias}{end}", 0, rows, "state", path)
            if below is not None:
                trace.tie_axis(f"{path}.weight_ih{end}", 1, below, "input", path)
        below = torch.cat(made)
    for states in (hidden, shown):
        if len(states) > 1:
            trace.balance(torch.cat(states), len(states), f"{why(call)} has one width for all its layers")
    zero = _tie_initial_states(trace, call, torch.stack(shown), torch.stack(hidden))
    assert below is not None
    return _results(call, below, torch.stack(shown), torch.stack(hidden), zero)


def _units(trace: Trace, module: nn.RNNBase, path: str, end: str) -> tuple[Tensor, Tensor]:
    """The hidden units of one layer and direction, and those it shows: the same unless it is projected."""
    key = (trace.canonical(f"{path}.weight_hh{end}"), 0, 0)
    known = trace.axes.get(key)
    hidden = known.labels[: module.hidden_size] if known else trace.sets.fresh(module.hidden_size)
    if not module.proj_size:
        return hidden, hidden
    trace.tie_axis(f"{path}.weight_hr{end}", 1, hidden, "input", path)
    return hidden, trace.axis(f"{path}.weight_hr{end}", 0, "output", path)


def _inputs(trace: Trace, call: OpCall, source: object) -> Tensor | None:
    """The labels along the last dim of the input; everything else in it keeps its size."""
    value = trace.values.get(source.name) if isinstance(source, Node) else None
    held = next(iter(labels_in(value)), None)
    if held is None:
        raise Stop(f"{why(call)}: its input is not a tensor")
    last, found = held.rank - 1, None
    for layer in trace.simple(held):
        layer = trace.pin(layer, [dim for dim in layer.dims if dim != last], f"{why(call)} runs along it")
        if layer.dims and found is None:
            found = layer.labels
        else:
            trace.pin(layer, layer.dims, why(call))
    return found


def _tie_initial_states(trace: Trace, call: OpCall, shown: Tensor, hidden: Tensor) -> bool:
    """Tie given states to the hidden units; True if the state of a removed unit starts, and so stays, at zero."""
    zero, given = True, call.arguments.get("hx")
    items = given if isinstance(given, (tuple, list)) else [given]
    for item, labels in zip(items, (shown, hidden), strict=False):
        if not isinstance(item, Node):
            continue
        value = trace.values.get(item.name)
        for state in labels_in(value):
            mine = Labels(state.shape, [_hidden_layer(state.rank, labels)])
            theirs = aligned(trace, state, state.rank, item if isinstance(value, Labels) else None)
            match(trace, aligned(trace, mine, state.rank), theirs, why(call))
            zero = zero and state.zero
    return zero


def _hidden_layer(rank: int, labels: Tensor) -> Layer:
    """The labels of states [layers and directions, ..., units]; one layer and direction has no dim of its own."""
    return Layer((0, rank - 1), labels) if len(labels) > 1 else Layer((rank - 1,), labels[0])


def _results(call: OpCall, last: Tensor, shown: Tensor, hidden: Tensor, zero: bool) -> object:
    """The sequence of outputs (of a packed one, the data), then the final states."""
    first, rest = call.node.meta["value"]
    states = iter((shown, hidden))

    def walk(info: object) -> object:
        if isinstance(info, TensorInfo):
            return Labels(info.shape, [_hidden_layer(len(info.shape), next(states))], zero)
        return tuple(walk(item) for item in info) if isinstance(info, (tuple, list)) else info

    data = first if isinstance(first, TensorInfo) else first[0]
    sequence: object = Labels(data.shape, [Layer((len(data.shape) - 1,), last)], zero)
    if data is not first:
        sequence = (sequence, *(blank(item) for item in first[1:]))
    return sequence, walk(rest)


@rule("packed_sequence")
def packed_sequence(trace: Trace, call: OpCall) -> object:
    """Data and the sizes of its batches, side by side."""
    items = [
        call.arguments.get(name) for name in ("input", "batch_sizes", "sorted_indices", "unsorted_indices")
    ]
    return tuple(trace.values.get(item.name) if isinstance(item, Node) else None for item in items)


@rule("repack")
def repack(trace: Trace, call: OpCall) -> object:
    """Steps and sequences are rearranged by their lengths; features stay features."""
    source = call.arguments["input"]
    labels = _inputs(trace, call, source)
    held = labels_in(trace.values.get(source.name) if isinstance(source, Node) else None)
    zero = all(value.zero for value in held) and not call.arguments.get("padding_value")

    def build(info: TensorInfo) -> Labels:
        last = len(info.shape) - 1
        features = info.dtype.is_floating_point and labels is not None and info.shape[last] == len(labels)
        return Labels(info.shape, [Layer((last,), labels)] if features and labels is not None else [], zero)

    return outputs(call, build)


@rule("cell")
def cell(trace: Trace, call: OpCall) -> object:
    """One step of a recurrent layer."""
    names = [tensor_name(call.arguments.get(k)) for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    weight_ih, weight_hh = names[:2]
    if weight_ih is None or weight_hh is None:
        raise Stop(f"{why(call)}: its weights are computed")
    path = str(call.node.target) if call.module is not None else weight_hh.rpartition(".")[0] or weight_hh
    rows, units = call.shape("weight_hh")
    known = trace.axes.get((trace.canonical(weight_hh), 1, 0))
    hidden = known.labels if known else trace.sets.fresh(units)
    trace.tie_axis(weight_hh, 1, hidden, "input", path)
    for name, role in zip(names, ("output", "output", "state", "state"), strict=True):
        if name is not None:
            trace.tie_axis(name, 0, hidden.repeat(rows // units), role, path)  # type: ignore[arg-type]
    below = _inputs(trace, call, call.arguments["input"])
    if below is not None:
        trace.tie_axis(weight_ih, 1, below, "input", path)
    zero = _tie_initial_states(trace, call, hidden[None], hidden[None])
    return outputs(call, lambda info: Labels(info.shape, [Layer((len(info.shape) - 1,), hidden)], zero))
