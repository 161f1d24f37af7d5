"""One update of the adapters, in one process or with each batch divided among several."""

from __future__ import annotations

import atexit
import math
import os
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import logits_of, run_model
from sparsebit.llm.lora.attach import lora_layers
from sparsebit.processes import gather_values, rank, sum_tensors, take_from_first, world_size


class Update(Protocol):
    """What a training loop needs, independent of how the work is divided."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The adapters that this process updates."""
        ...

    def backward(self, rows: Tensor) -> float:
        """The gradients of the mean loss over rows of ids [batch, length]; returns that loss."""
        ...

    def gradient_norm(self) -> Tensor:
        """The norm of all gradients, those of other processes too."""
        ...

    def share(self) -> None:
        """Give every process the adapters of all processes."""
        ...


class WholeModel:
    """Every process has the complete model and processes its part of each batch."""

    def __init__(self, model: nn.Module, rank: int, world: int, batch: int) -> None:
        if batch % world:
            raise SparsebitError(f"a batch of {batch} cannot be divided among {world} processes")
        self._model, self._rank, self._world = model, rank, world
        self.parameters = adapters(model)
        take_from_first(self.parameters)  # their random numbers differ between processes

    def backward(self, rows: Tensor) -> float:
        """Gradients and loss are averaged over the processes."""
        mine = rows[self._rank :: self._world].to(self.parameters[0].device)
        loss = next_token_loss(logits_of(run_model(self._model, mine)), mine)
        loss.backward()
        reached = [parameter.grad is not None for parameter in self.parameters]
        losses, everywhere = zip(*gather_values((float(loss.detach()), reached)), strict=True)
        for parameter, known in zip(self.parameters, zip(*everywhere, strict=True), strict=True):
            if any(known):  # an expert that no token of this process reached, but one of another
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                sum_tensors([parameter.grad])
                parameter.grad /= self._world
        return math.fsum(losses) / self._world

    def gradient_norm(self) -> Tensor:
        """The same in every process."""
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])

    def share(self) -> None:
        """Nothing to do: the adapters are the same everywhere."""


def adapters(module: nn.Module) -> list[nn.Parameter]:
    """A and B of every adapter in a module."""
    return [p for _, layer in lora_layers(module) for p in (layer.lora_A, layer.lora_B)]


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean cross entropy of each next id, in nats."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def join_processes(model: nn.Module) -> tuple[int, int]:
    """The rank of this process among those that torchrun started, and their number."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ and not dist.is_initialized():
        device = adapters(model)[0].device
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave_processes)
    return rank(), world_size()


def _leave_processes() -> None:
    """Destroy the process group at exit: its threads could otherwise abort the process after its work is done."""
    if dist.is_initialized():
        dist.destroy_process_group()
