"""Batch norm re-estimated after pruning: a smaller model has different statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.batches import ModelInputs, device_of
from sparsebit.graph.exclusive import replaced
from sparsebit.graph.run import evaluating


def reestimate_norms(model: nn.Module, data: Iterable[Any], example: Any) -> int:
    """Replace the running statistics of every batch norm by plain averages over the batches; returns how many.

    Only batch norms are in training mode meanwhile, so that dropout stays off. No weight changes, and no labels are
    needed.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> reestimate_norms(net, [torch.ones(4, 2), torch.zeros(4, 2)], torch.ones(4, 2))
        1
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return 0
    inputs = ModelInputs(model, example)
    plain_averages = replaced(*((norm, "momentum", None) for norm in norms))
    with evaluating(model), plain_averages, torch.no_grad():
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
        for args, kwargs in inputs.calls(data, device=device_of(model)):
            model(*args, **kwargs)
    return len(norms)
