"""Random numbers that depend on a seed alone, and leave those of the user's own code as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


@contextlib.contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Torch's generators start from ``seed`` inside the block; afterwards they go on as if it had not been there.

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
