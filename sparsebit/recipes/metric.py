"""The metric where the user gives none: accuracy on batches of (inputs, labels)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization.batches import as_call, to_device

Metric = Callable[[nn.Module], float]


def accuracy_on(batches: Sequence[Any], examples: tuple[tuple[Any, ...], dict[str, Any]]) -> Metric:
    """A function from a model to the part of labels it gets right; refused where the batches have no such labels."""
    first = batches[0] if batches else None
    labels = first[-1] if isinstance(first, (tuple, list)) and len(first) > len(examples[0]) else None
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() != 1:
        raise SparsebitError(
            "it is not clear how good a model is on this data",
            expected="batches of (inputs, class labels), or a metric",
            hint="pass metric=, a function from a model to a number that is higher the better",
        )

    def accuracy(model: nn.Module) -> float:
        home = next((p.device for p in model.parameters()), torch.device("cpu"))
        right = total = 0
        with torch.no_grad():
            for batch in batches:
                args, kwargs = as_call(batch, *examples)
                outputs = model(*to_device(args, home), **to_device(kwargs, home))
                if not isinstance(outputs, Tensor) or outputs.dim() != 2:
                    raise SparsebitError(
                        "accuracy needs one row of class scores for each sample",
                        got=type(outputs).__name__
                        if not isinstance(outputs, Tensor)
                        else f"shape {tuple(outputs.shape)}",
                        hint="pass metric=, a function from a model to a number that is higher the better",
                    )
                right += int((outputs.argmax(1).cpu() == batch[-1].cpu()).sum())
                total += len(batch[-1])
        return right / max(total, 1)

    return accuracy
