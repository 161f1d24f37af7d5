"""Which axes of the inputs may have a different length at run time, and their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.errors import ExportError

AxisNames = dict[str, dict[int, str]]
DynamicAxes = Mapping[str, Mapping[int, str] | Sequence[int]]
FixedAxes = Mapping[str, Mapping[int, str]]
BATCH, SEQUENCE = "batch", "sequence"


def default_axes(names: Sequence[str], inputs: Sequence[Tensor]) -> AxisNames:
    """The batch axis: the first axis of every input whose first axis has the most common length.

    Example:
        >>> import torch
        >>> default_axes(["x", "table"], [torch.zeros(2, 8), torch.zeros(16, 4)])
        {'x': {0: 'batch'}}
    """
    lengths = [x.shape[0] for x in inputs if x.dim()]
    if not lengths:
        return {}
    counts = Counter(lengths)
    batch = max(lengths, key=lambda length: counts[length])  # the first of the most frequent
    return {
        name: {0: BATCH} for name, x in zip(names, inputs, strict=True) if x.dim() and x.shape[0] == batch
    }


def text_axes(names: Sequence[str], inputs: Sequence[Tensor], batch: AxisNames) -> AxisNames:
    """The batch and the sequence, if the inputs look like text: integers with two axes, and masks of their size.

    Sequences of another length have a name of their own: a runtime takes axes of one name to be equally long.

    Example:
        >>> import torch
        >>> ids = torch.zeros(2, 8, dtype=torch.long)
        >>> text_axes(["ids", "mask"], [ids, ids], {"ids": {0: "batch"}, "mask": {0: "batch"}})
        {'ids': {0: 'batch', 1: 'sequence'}, 'mask': {0: 'batch', 1: 'sequence'}}
    """
    tokens = {tuple(x.shape) for x in inputs if x.dim() == 2 and x.dtype in (torch.int32, torch.int64)}
    found = {name: dict(axes) for name, axes in batch.items()}
    labels: dict[int, str] = {}
    for name, x in zip(names, inputs, strict=True):
        if name in found and tuple(x.shape) in tokens and x.shape[1] > 1:
            label = f"{SEQUENCE}_{len(labels) + 1}" if labels else SEQUENCE
            found[name][1] = labels.setdefault(x.shape[1], label)
    return found


def axis_choices(
    asked: DynamicAxes | Literal["batch"] | None,
    input_names: Sequence[str],
    output_names: Sequence[str],
    inputs: Sequence[Tensor],
    fixed: FixedAxes | None = None,
) -> tuple[AxisNames, ...]:
    """The choices to try, the most dynamic first: the requested axes, or by default batch and sequence, batch, none.

    ``fixed`` are the axes in which the graph is only right at the example's size. Requesting one of them is an error.
    """
    fixed = fixed or {}
    if asked != "batch":
        found = named_axes(asked, input_names, output_names, inputs)
        for name, axis in ((name, axis) for name, axes in found.items() for axis in axes):
            if axis in fixed.get(name, {}):
                raise ExportError(
                    f"dynamic_axes: axis {axis} of {name!r} cannot be dynamic: {fixed[name][axis]}",
                    hint=f"leave axis {axis} out, or capture the model with dynamic={{{name!r}: [{axis}]}}",
                )
        return (found,)
    batch = _without(default_axes(input_names, inputs), fixed)
    text = _without(text_axes(input_names, inputs, batch), fixed)
    choices: tuple[AxisNames, ...] = (text, batch, {})
    return tuple(axes for place, axes in enumerate(choices) if axes not in choices[:place])


def fixed_axes(gm: GraphModule, names: Sequence[str]) -> FixedAxes:
    """The axes of each input in which a captured graph is only right at the example's size, with the reason."""
    signature = getattr(gm, "call_signature", None)  # a graph that was not captured by sparsebit has none
    if signature is None:
        return {}
    leaves = signature.input_leaves()
    if len(leaves) != len(names):
        return {}
    return {
        name: {size.dim: size.why for size in leaf.sizes if not size.free}
        for name, leaf in zip(names, leaves, strict=True)
    }


def _without(axes: AxisNames, fixed: FixedAxes) -> AxisNames:
    left = {
        name: {axis: label for axis, label in found.items() if axis not in fixed.get(name, {})}
        for name, found in axes.items()
    }
    return {name: found for name, found in left.items() if found}


def named_axes(
    asked: DynamicAxes | None,
    input_names: Sequence[str],
    output_names: Sequence[str],
    inputs: Sequence[Tensor],
) -> AxisNames:
    """The requested axes, with a name for each; counted from the front.

    Example:
        >>> import torch
        >>> named_axes({"x": [0, -1]}, ["x"], [], [torch.zeros(2, 3, 4)])
        {'x': {0: 'x_dim_0', 2: 'x_dim_2'}}
    """
    ranks: dict[str, int | None] = {name: None for name in output_names}
    ranks |= {name: x.dim() for name, x in zip(input_names, inputs, strict=True)}
    found: AxisNames = {}
    if not isinstance(asked, Mapping | None):
        raise ExportError(
            "dynamic_axes names inputs and outputs",
            expected="a dict such as {'input': [0]} or {'input': {0: 'batch'}}",
            got=f"{asked!r:.80}",
        )
    for name, axes in (asked or {}).items():
        if name not in ranks:
            raise ExportError(
                f"dynamic_axes names {name!r}, which is not an input or output",
                expected=f"one of {', '.join(ranks)}",
            )
        rank = ranks[name]
        for axis, label in _labelled(name, axes):
            if rank is not None and not -rank <= axis < rank:
                raise ExportError(f"dynamic_axes: {name!r} has no axis {axis}", got=f"{rank} dimensions")
            place = axis % rank if rank else axis
            found.setdefault(name, {})[place] = label or f"{name}_dim_{place}"
    lengths: dict[str, int] = {}
    for name, x in zip(input_names, inputs, strict=True):
        for axis, label in found.get(name, {}).items():
            if lengths.setdefault(label, x.shape[axis]) != x.shape[axis]:
                raise ExportError(
                    f"dynamic_axes: {label!r} names axes of different lengths",
                    expected=f"{lengths[label]}, as in another input",
                    got=f"{x.shape[axis]} in axis {axis} of {name!r}",
                    hint="give them different names: a runtime takes axes of one name to be equally long",
                )
    return found


def _labelled(name: str, axes: object) -> list[tuple[int, str]]:
    """The axes of one input or output and their names, which are empty if none were given."""
    pairs: list[Any] = [axes]
    if isinstance(axes, Mapping):
        pairs = list(axes.items())
    elif isinstance(axes, Sequence) and not isinstance(axes, str):
        pairs = [(axis, "") for axis in axes]
    if any(not isinstance(pair, tuple) or list(map(type, pair)) != [int, str] for pair in pairs):
        raise ExportError(
            f"dynamic_axes: the axes of {name!r} are not numbers with names",
            expected="a list of numbers such as [0], or a dict of names such as {0: 'batch'}",
            got=f"{axes!r:.80}",
        )
    return pairs


def resized(inputs: Sequence[Tensor], names: Sequence[str], axes: AxisNames) -> list[Tensor] | None:
    """The same inputs with another size along every dynamic axis; None if nothing is dynamic.

    Axes are doubled, but sequences halved: they may already be as long as the model's table of positions.
    """
    if not any(axes.get(name) for name in names):
        return None
    made = []
    for name, x in zip(names, inputs, strict=True):
        for axis, label in axes.get(name, {}).items():
            half = -(-x.shape[axis] // 2)
            x = x.narrow(axis, 0, half) if label.startswith(SEQUENCE) else torch.cat([x, x], axis)
        made.append(x.contiguous())
    return made
