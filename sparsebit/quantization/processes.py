"""Several processes that calibrate or train one model: what one of them knows, all of them know."""

from __future__ import annotations

from functools import reduce
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization.observers.base import Observer, State


def gather_values(value: Any) -> list[Any]:
    """The value of every process, by rank; where nothing is distributed, the one value."""
    if not _distributed():
        return [value]
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, value)
    return gathered


def raise_together(error: Exception | None) -> None:
    """Raise an error of this process here, and in every other process as well: none is left waiting for the others."""
    messages = gather_values(None if error is None else str(error))
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise SparsebitError(f"calibration failed on another process: {message}", where=f"rank {rank}")


def merge_across_processes(observer: Observer[State], state: State) -> State:
    """What one process would know that had seen all the data, rank by rank; the same on every process.

    Every process must call it, with a state for the same rows; one that saw no data passes the state of ``init``.
    Where nothing is distributed, the state comes back as it is.
    """
    if not _distributed():
        return state
    kind, fields = cast("Any", type(state)), map(_gather, state)
    states: list[State] = [kind(*tensors) for tensors in zip(*fields, strict=True)]
    return reduce(observer.merge, states)


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _gather(tensor: Tensor) -> list[Tensor]:
    tensor = tensor.contiguous()
    gathered = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, tensor)
    return gathered
