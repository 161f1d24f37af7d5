"""Batch norm measured again after pruning: the statistics of a smaller model are not those of the large one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.batches import ModelInputs, device_of


def reestimate_norms(
    model: nn.Module,
    data: Iterable[Any],
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
) -> int:
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
    inputs = ModelInputs(model, example_inputs, example_kwargs)
    home = device_of(model)
    training, momenta = model.training, [norm.momentum for norm in norms]
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
            norm.train()
        with torch.no_grad():
            for args, kwargs in inputs.calls(data, device=home):
                model(*args, **kwargs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(training)
    return len(norms)
