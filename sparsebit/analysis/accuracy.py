"""The accuracy of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsebit.batches import Call, DataError, ModelInputs, copied, device_of, read_batches, to_device
from sparsebit.errors import SparsebitError
from sparsebit.graph.run import evaluating

Metric = Callable[[Any, Any], Any]


def top1(outputs: Tensor, labels: Tensor) -> Tensor:
    """The fraction of samples whose largest output is at their label; outputs [N, C, ...], labels [N, ...].

    Example:
        >>> top1(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        tensor(0.5000)
    """
    if not isinstance(outputs, Tensor) or outputs.dim() < 2:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        raise SparsebitError(
            "accuracy needs one row of class scores for each sample",
            got=got,
            hint="pass your own metric for other outputs",
        )
    answers = outputs.argmax(1)
    if answers.shape != labels.shape:
        raise SparsebitError(
            "the labels do not fit the outputs of the model",
            expected=f"labels of shape {tuple(answers.shape)} for outputs of shape {tuple(outputs.shape)}",
            got=f"labels of shape {tuple(labels.shape)}",
        )
    for label in map(int, labels.aminmax()) if labels.numel() else ():
        if not 0 <= label < outputs.shape[1]:
            raise SparsebitError(
                f"label {label} is out of range for a model with {outputs.shape[1]} classes",
                expected=f"labels from 0 to {outputs.shape[1] - 1}",
                hint="pass your own metric for labels that do not count, such as -100",
            )
    return (answers == labels).float().mean()


def measure(
    model: nn.Module | Callable[..., Any],
    batches: Iterable[Any],
    metric: Metric = top1,
    *,
    what: str = "measuring",
    shown: bool | None = None,
    inputs: ModelInputs | None = None,
) -> float:
    """The mean of a metric over labelled batches, each counted by its samples.

    Args:
        model: called with the inputs of a batch; also a function, such as one that runs a file in a runtime.
        batches: ``(inputs, labels)``, or a dict with the labels under ``labels``, ``targets`` or ``y``.
        metric: called as ``metric(outputs, labels)``; of several outputs it gets the ``logits`` or the first.
        what: the text before the progress bar.
        shown: whether to show progress; by default only on a terminal.
        inputs: how batches become calls, if the model's signature does not say.
    """
    device, inputs = device_of(model), inputs or ModelInputs.of(model)
    total, count = 0.0, 0
    with evaluating(model), torch.no_grad():
        for item in read_batches(batches, None, what, shown):
            args, kwargs, _, labels = to_device(inputs.labelled(item), device)
            # The model may write to them, and a batch is read again.
            args, kwargs = copied(Call(args, kwargs))
            outputs = first_tensor(model(*args, **kwargs))
            labels = labels.to(outputs.device) if isinstance(labels, Tensor) else labels
            size = len(labels) if isinstance(labels, Sequence) or np.ndim(labels) else 1
            if not size:
                continue
            total += size * float(metric(outputs, labels))
            count += size
    if not count:
        raise DataError("there are no samples to measure on: every batch is empty")
    return total / count


def has_labels(batch: Any, inputs: ModelInputs | None = None) -> bool:
    """Whether a batch holds labels that ``top1`` can use."""
    try:
        labels = (inputs or ModelInputs()).batch(batch).labels
    except DataError:
        return False
    return isinstance(labels, Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool


def first_tensor(outputs: Any) -> Any:
    """The logits of a structured output, or its first tensor."""
    if isinstance(outputs, Tensor):
        return outputs
    named = outputs if isinstance(outputs, Mapping) else vars(outputs) if hasattr(outputs, "__dict__") else {}
    if isinstance(named.get("logits"), Tensor):
        return named["logits"]
    values = named.values() if named else outputs if isinstance(outputs, tuple | list) else ()
    found = next((value for value in values if isinstance(value, Tensor)), None)
    return outputs if found is None else found
