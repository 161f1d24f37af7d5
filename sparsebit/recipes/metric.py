"""The metric where the user gives none: accuracy on batches with class labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from sparsebit.analysis.accuracy import first_tensor, has_labels, top1
from sparsebit.batches import Call, ModelInputs, to_device
from sparsebit.errors import SparsebitError

Metric = Callable[[nn.Module], float]


def accuracy_on(batches: Sequence[Any], examples: Call) -> Metric:
    """A function from a model to the part of labels it gets right; refused where the batches have no such labels."""
    first = batches[0] if batches else None
    inputs = ModelInputs(None, *examples)
    if not has_labels(first, inputs):
        raise SparsebitError(
            "it is not clear how good a model is on this data",
            expected="batches of (inputs, class labels), dicts with 'labels' in them, or a metric",
            hint="pass metric=, a function from a model to a number that is higher the better",
        )

    def accuracy(model: nn.Module) -> float:
        home = next((p.device for p in model.parameters()), torch.device("cpu"))
        right = total = 0.0
        with torch.no_grad():
            for batch in batches:
                args, kwargs, _, labels = to_device(inputs.labelled(batch), home)
                outputs = first_tensor(model(*args, **kwargs))
                right += float(top1(outputs, labels)) * len(labels)
                total += len(labels)
        return right / max(total, 1)

    return accuracy
