"""Which axes of the inputs may have another length at run time, and what they are called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from sparsebit.export.errors import ExportError

AxisNames = dict[str, dict[int, str]]
DynamicAxes = Mapping[str, Mapping[int, str] | Sequence[int]]
BATCH = "batch"


def default_axes(names: Sequence[str], inputs: Sequence[Tensor]) -> AxisNames:
    """The first axis of every input whose first axis has the length that most have: the batch.

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


def named_axes(
    asked: DynamicAxes | Literal["batch"] | None,
    input_names: Sequence[str],
    output_names: Sequence[str],
    inputs: Sequence[Tensor],
) -> AxisNames:
    """What was asked for, with a name for every axis; counted from the front.

    Example:
        >>> import torch
        >>> named_axes({"x": [0, -1]}, ["x"], [], [torch.zeros(2, 3, 4)])
        {'x': {0: 'x_dim_0', 2: 'x_dim_2'}}
    """
    if asked == "batch":
        return default_axes(input_names, inputs)
    ranks: dict[str, int | None] = {name: None for name in output_names}
    ranks |= {name: x.dim() for name, x in zip(input_names, inputs, strict=True)}
    found: AxisNames = {}
    for name, axes in (asked or {}).items():
        if name not in ranks:
            raise ExportError(
                f"dynamic_axes names {name!r}, which is no input or output",
                expected=f"one of {', '.join(ranks)}",
            )
        rank = ranks[name]
        pairs = axes.items() if isinstance(axes, Mapping) else [(axis, "") for axis in axes]
        for axis, label in pairs:
            if rank is not None and not -rank <= axis < rank:
                raise ExportError(f"dynamic_axes: {name!r} has no axis {axis}", got=f"{rank} dimensions")
            place = axis % rank if rank else axis
            found.setdefault(name, {})[place] = label or f"{name}_dim_{place}"
    return found


def lengthened(inputs: Sequence[Tensor], names: Sequence[str], axes: AxisNames) -> list[Tensor] | None:
    """The same inputs, twice as long along every dynamic axis; None if nothing is dynamic."""
    if not any(axes.get(name) for name in names):
        return None
    longer = []
    for name, x in zip(names, inputs, strict=True):
        repeats = [2 if axis in axes.get(name, {}) else 1 for axis in range(x.dim())]
        longer.append(x.repeat(repeats) if x.dim() else x)
    return longer
