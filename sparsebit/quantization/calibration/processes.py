"""Calibration in several processes: what one of them knows, all of them know."""

from __future__ import annotations

from typing import Any

import torch.distributed

from sparsebit.errors import SparsebitError


def gather_values(value: Any) -> list[Any]:
    """The value of every process, by rank; where nothing is distributed, the one value."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
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
