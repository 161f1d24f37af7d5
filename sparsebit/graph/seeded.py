"""Random numbers that depend only on a seed, without changing the random state of the user's code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Inside the block, torch's generators start from ``seed``; afterwards their state is restored.

    Args:
        seed: of the CPU's generator, and of those of the model's GPUs.
        model: says which GPUs these are.

    Example:
        >>> with seeded(0, nn.Identity()):
        ...     first = torch.rand(1)
        >>> with seeded(0, nn.Identity()):
        ...     torch.equal(first, torch.rand(1))
        True
    """
    tensors = (*model.parameters(), *model.buffers())
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.is_cuda})
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
