"""Recurrent layers: hidden units own their gates, their state and their part of the output."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.graph.value import TensorInfo, map_tensors
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, rule, tensor_name
from sparsebit.sparse.channels.trace import blank, labels_in


@rule("recurrent")
def recurrent(at: Visit) -> object:
    """Stacked, bidirectional, projected; the same number of channels must remain in every layer and direction."""
    module = at.call.module
    if not isinstance(module, nn.RNNBase):
        raise Stop(f"{at.why}: the functional form")
    path = str(at.call.node.target)
    gates = at.call.owner.get_parameter(f"{path}.weight_ih_l0").shape[0] // module.hidden_size
    directions = 2 if module.bidirectional else 1
    below = _inputs(at, at.arguments["input"])
    hidden: list[Tensor] = []
    shown: list[Tensor] = []
    for layer in range(module.num_layers):
        made = []
        for suffix in ("", "_reverse")[:directions]:
            end = f"_l{layer}{suffix}"
            recurrent_units, out = _units(at, module, path, end)
            hidden.append(recurrent_units)
            shown.append(out)
            made.append(out)
            rows = recurrent_units.repeat(gates)
            at.trace.tie_axis(f"{path}.weight_ih{end}", 0, rows, "output", path)
            at.trace.tie_axis(f"{path}.weight_hh{end}", 0, rows, "output", path)
            at.trace.tie_axis(f"{path}.weight_hh{end}", 1, out, "input", path)
            if module.bias:
                for bias in ("bias_ih", "bias_hh"):
                    at.trace.tie_axis(f"{path}.{bias}{end}", 0, rows, "state", path)
            if below is not None:
                at.trace.tie_axis(f"{path}.weight_ih{end}", 1, below, "input", path)
        below = torch.cat(made)
    for states in (hidden, shown):
        if len(states) > 1:
            at.trace.balance(torch.cat(states), len(states), f"{at.why} has one width for all its layers")
    zero = _tie_initial_states(at, torch.stack(shown), torch.stack(hidden))
    assert below is not None
    return _results(at, below, torch.stack(shown), torch.stack(hidden), zero)


def _units(at: Visit, module: nn.RNNBase, path: str, end: str) -> tuple[Tensor, Tensor]:
    """The hidden units of one layer and direction, and its outputs: the same units unless it has a projection."""
    key = (at.trace.canonical(f"{path}.weight_hh{end}"), 0, 0)
    known = at.trace.axes.get(key)
    hidden = known.labels[: module.hidden_size] if known else at.trace.sets.fresh(module.hidden_size)
    if not module.proj_size:
        return hidden, hidden
    at.trace.tie_axis(f"{path}.weight_hr{end}", 1, hidden, "input", path)
    return hidden, at.trace.axis(f"{path}.weight_hr{end}", 0, "output", path)


def _inputs(at: Visit, source: object) -> Tensor | None:
    """The labels along the last dim of the input; everything else in it keeps its size."""
    value = at.trace.values.get(source.name) if isinstance(source, Node) else None
    held = next(iter(labels_in(value)), None)
    if held is None:
        raise Stop(f"{at.why}: its input is not a tensor")
    last, found = held.rank - 1, None
    for family in at.trace.simple(held):
        family = at.pin(family, [dim for dim in family.dims if dim != last], f"{at.why} runs along it")
        if family.dims and found is None:
            found = family.labels
        else:
            at.pin(family, family.dims)
    return found


def _tie_initial_states(at: Visit, shown: Tensor, hidden: Tensor) -> bool:
    """Tie initial states to the hidden units; True if the state of a removed unit starts and stays at zero."""
    zero, given = True, at.arguments.get("hx")
    items = given if isinstance(given, (tuple, list)) else [given]
    for item, labels in zip(items, (shown, hidden), strict=False):
        if not isinstance(item, Node):
            continue
        value = at.trace.values.get(item.name)
        for state in labels_in(value):
            mine = Labels(state.shape, [_hidden_family(state.rank, labels)])
            theirs = at.aligned(state, state.rank, item if isinstance(value, Labels) else None)
            at.match(at.aligned(mine, state.rank), theirs)
            zero = zero and state.zero
    return zero


def _hidden_family(rank: int, labels: Tensor) -> Family:
    """The labels of states [layers and directions, ..., units]; a single layer and direction has no separate dim."""
    return Family((0, rank - 1), labels) if len(labels) > 1 else Family((rank - 1,), labels[0])


def _results(at: Visit, last: Tensor, shown: Tensor, hidden: Tensor, zero: bool) -> object:
    """The sequence of outputs (of a packed one, the data), then the final states."""
    first, rest = at.call.node.meta["value"]
    states = iter((shown, hidden))
    data = first if isinstance(first, TensorInfo) else first[0]
    sequence: object = Labels(data.shape, [Family((len(data.shape) - 1,), last)], zero)
    if data is not first:
        sequence = (sequence, *(blank(item) for item in first[1:]))
    ends = map_tensors(
        rest, lambda info: Labels(info.shape, [_hidden_family(len(info.shape), next(states))], zero)
    )
    return sequence, ends


@rule("packed_sequence")
def packed_sequence(at: Visit) -> object:
    """Data and the sizes of its batches, side by side."""
    items = [
        at.arguments.get(name) for name in ("input", "batch_sizes", "sorted_indices", "unsorted_indices")
    ]
    return tuple(at.trace.values.get(item.name) if isinstance(item, Node) else None for item in items)


@rule("repack")
def repack(at: Visit) -> object:
    """Steps and sequences are rearranged by their lengths; features are unchanged."""
    source = at.arguments["input"]
    labels = _inputs(at, source)
    held = labels_in(at.trace.values.get(source.name) if isinstance(source, Node) else None)
    zero = all(value.zero for value in held) and not at.arguments.get("padding_value")

    def build(info: TensorInfo) -> Labels:
        last = len(info.shape) - 1
        features = info.dtype.is_floating_point and labels is not None and info.shape[last] == len(labels)
        return Labels(info.shape, [Family((last,), labels)] if features and labels is not None else [], zero)

    return at.outputs(build)


@rule("cell")
def cell(at: Visit) -> object:
    """One step of a recurrent layer."""
    names = [tensor_name(at.arguments.get(k)) for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    weight_ih, weight_hh = names[:2]
    if weight_ih is None or weight_hh is None:
        raise Stop(f"{at.why}: its weights are computed")
    path = (
        str(at.call.node.target) if at.call.module is not None else weight_hh.rpartition(".")[0] or weight_hh
    )
    rows, units = at.call.shape("weight_hh")
    known = at.trace.axes.get((at.trace.canonical(weight_hh), 1, 0))
    hidden = known.labels if known else at.trace.sets.fresh(units)
    at.trace.tie_axis(weight_hh, 1, hidden, "input", path)
    for name, role in zip(names, ("output", "output", "state", "state"), strict=True):
        if name is not None:
            at.trace.tie_axis(name, 0, hidden.repeat(rows // units), role, path)  # type: ignore[arg-type]
    below = _inputs(at, at.arguments["input"])
    if below is not None:
        at.trace.tie_axis(weight_ih, 1, below, "input", path)
    zero = _tie_initial_states(at, hidden[None], hidden[None])
    return at.outputs(lambda info: Labels(info.shape, [Family((len(info.shape) - 1,), hidden)], zero))
