"""Merge the measurements of one tensor by several processes, each on its own data."""

from __future__ import annotations

from functools import reduce
from typing import Any, cast

import torch

from sparsebit.errors import SparsebitError
from sparsebit.processes import gather_tensor, gather_values, is_distributed
from sparsebit.quantization.observers.base import Observer, State


def merge_across_processes(
    observer: Observer[State], state: State | None, device: torch.device | str = "cpu"
) -> State | None:
    """The state of one process that had seen all data, rank by rank; the same on every process.

    Every process must call it; one that saw no data passes None, and with ``device`` where its state would be. Without
    any data, and without a process group, the state is returned unchanged.
    """
    if not is_distributed():
        return state
    shapes = None if state is None else [(tuple(field.shape), field.dtype) for field in state]
    everywhere = gather_values(shapes)
    known = [found for found in everywhere if found is not None]
    if not known:
        return None
    if any(found != known[0] for found in known):
        raise SparsebitError(
            "processes have measured tensors of different shapes or types",
            expected="the same number of channels, and the same type, on every process",
            got=f"states {', '.join(sorted({str(found) for found in known}))}",
        )
    if state is None:
        kind = cast("Any", type(observer.init(torch.empty(1, 0))))
        state = kind(*(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in known[0]))
    return merge_states(observer, state, [found is not None for found in everywhere])


def merge_states(observer: Observer[State], state: State, seen: list[bool] | None = None) -> State:
    """The same for states of one shape; ``seen`` says by rank which are used, by default all."""
    kind, fields = cast("Any", type(state)), map(gather_tensor, state)
    states: list[State] = [kind(*tensors) for tensors in zip(*fields, strict=True)]
    return reduce(
        observer.merge, [one for one, used in zip(states, seen or [True] * len(states), strict=True) if used]
    )
