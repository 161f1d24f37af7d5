"""Batch norm measured again after pruning: the statistics of a smaller model are not those of the large one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.batches import as_call, to_device


def as_calls(
    model: nn.Module, data: Iterable[Any], example_inputs: Any, example_kwargs: Mapping[str, Any] | None
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Batches as arguments of one call after another, on the model's device."""
    inputs = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    examples = (tuple(inputs) if example_inputs is not None else (), dict(example_kwargs or {}))
    home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    for batch in data:
        args, kwargs = as_call(batch, *examples)
        yield to_device(args, home), to_device(kwargs, home)


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
    training, momenta = model.training, [norm.momentum for norm in norms]
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain average over batches
            norm.train()
        with torch.no_grad():
            for args, kwargs in as_calls(model, data, example_inputs, example_kwargs):
                model(*args, **kwargs)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        model.train(training)
    return len(norms)
