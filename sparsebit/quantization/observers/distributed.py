"""One state from the states of all processes, for calibration that is spread over them."""

from __future__ import annotations

from functools import reduce
from typing import Any, cast

import torch
import torch.distributed
from torch import Tensor

from sparsebit.quantization.observers.base import Observer, State


def merge_across_processes(
    observer: Observer[State], state: State, group: torch.distributed.ProcessGroup | None = None
) -> State:
    """What one process would know that had seen all the data, rank by rank; the same on every process.

    Every process of the group must call it, with a state for the same rows; one that saw no data passes the state of
    ``init``. Where nothing is distributed, the state comes back as it is.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return state
    fields = [_gather(tensor, group) for tensor in state]
    kind = cast("Any", type(state))
    states: list[State] = [kind(*tensors) for tensors in zip(*fields, strict=True)]
    return reduce(observer.merge, states)


def everywhere(fact: bool) -> bool:
    """Whether something holds in every process; each of them learns it, so that all can stop together."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return fact
    backend = torch.distributed.get_backend()
    holds = torch.tensor([int(fact)], device="cuda" if backend == "nccl" else "cpu")
    torch.distributed.all_reduce(holds, op=torch.distributed.ReduceOp.MIN)
    return bool(holds.item())


def _gather(tensor: Tensor, group: torch.distributed.ProcessGroup | None) -> list[Tensor]:
    tensor = tensor.contiguous()
    gathered = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(gathered, tensor, group=group)
    return gathered
