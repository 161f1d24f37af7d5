"""Training of adapters: on one device, or on every process that torchrun starts, with gradients averaged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.lora.attach import lora_layers
from sparsebit.llm.tokens import Text, as_ids


def train_lora(
    model: LanguageModel,
    data: Text,
    *,
    steps: int = 100,
    rate: float = 2e-4,
    batch: int = 4,
    length: int = 256,
    warmup: int = 10,
    seed: int = 0,
) -> list[float]:
    """Train the adapters on a text; returns the loss of each step, in nats per token.

    Under ``torchrun`` every process takes its part of each batch, and gradients are averaged, so that the result is
    that of one process with the same batch. The device is the one that the model is on.

    Args:
        model: with adapters, see ``add_lora``.
        data: token ids, a text, or the path of a text file.
        steps: updates.
        rate: the highest learning rate; it rises for ``warmup`` steps and then falls along a cosine to zero.
        batch: sequences of an update, over all processes together.
        length: tokens of a sequence.
        warmup: steps.
        seed: of the order of the sequences, and of dropout.
    """
    parameters = [p for _, layer in lora_layers(model.model) for p in (layer.lora_A, layer.lora_B)]
    if not parameters:
        raise SparsebitError("the model has no adapters", hint="add_lora(model) first")
    device = parameters[0].device
    rank, world = _join(device)
    if batch % world:
        raise SparsebitError(f"a batch of {batch} cannot be divided among {world} processes")
    if world > 1:
        for parameter in parameters:  # adapters start from random numbers, which differ between processes
            dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    torch.manual_seed(seed)
    losses = []
    model.model.train()
    try:
        for step, rows in enumerate(batches(as_ids(data, model.tokenizer), steps, batch, length, seed)):
            share = rate_at(step, steps, warmup)
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            mine = rows[rank::world].to(device)
            output = model.model(mine)
            logits = output.logits if hasattr(output, "logits") else output
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), mine[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            losses.append(_average(parameters, loss, world))
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
    finally:
        model.model.eval()
    return losses


def batches(ids: Tensor, steps: int, batch: int, length: int, seed: int) -> Iterator[Tensor]:
    """Rows of ids [batch, length], each part of the text once before any comes again."""
    count = len(ids) // length
    if not count:
        raise SparsebitError(
            f"the text has {len(ids)} tokens, less than one sequence of {length}", hint="a smaller length="
        )
    rows = ids[: count * length].view(count, length)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(steps):
        while len(order) < batch:
            order += torch.randperm(count, generator=generator).tolist()
        taken, order = order[:batch], order[batch:]
        yield rows[taken]


def rate_at(step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step, as a part of the highest.

    Example:
        >>> [round(rate_at(step, 12, 2), 2) for step in (0, 1, 2, 7, 11)]
        [0.5, 1.0, 1.0, 0.5, 0.02]
    """
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def _join(device: torch.device) -> tuple[int, int]:
    """The place of this process among those that torchrun started, and how many there are."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def _average(parameters: list[torch.nn.Parameter], loss: Tensor, world: int) -> float:
    """Gradients averaged over all processes, and the mean loss."""
    seen = loss.detach().clone()
    if world > 1:
        for tensor in (*(p.grad for p in parameters if p.grad is not None), seen):
            dist.all_reduce(tensor)
            tensor /= world
    return float(seen)
