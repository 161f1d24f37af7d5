"""One item of a data set: how to call the model with it, and how to take its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.batches import DataError, ModelInputs, to_device

Loss = Callable[..., Tensor]


class LossBatch:
    """One item of the data: how to call the model with it (see ``sparsebit.batches``), and how to take its loss.

    The loss is called as ``loss(output, *rest)``: with the items of a tuple behind the inputs, or with the whole dict.
    """

    def __init__(self, item: Any, inputs: ModelInputs, device: torch.device | None = None) -> None:
        item = item if device is None else to_device(item, device)
        self.args, self.kwargs, self.rest, _ = inputs.batch(item)

    def measure(self, output: Any, loss: Loss | None) -> Tensor:
        """The loss of the model's output on this batch."""
        value = loss(output, *self.rest) if loss is not None else _own_loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise DataError(
                "the loss is not a number that depends on the weights",
                got=f"{type(value).__name__}{list(value.shape) if isinstance(value, Tensor) else ''}",
                hint="return a scalar tensor, computed from the output without detach()",
            )
        return value


def _own_loss(output: Any) -> Any:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        raise DataError(
            "this criterion needs gradients, and there is no loss to take them of",
            hint="pass loss=..., such as torch.nn.functional.cross_entropy, called with the output and the targets",
        )
    return found


def fit(item: Any, like: Tensor) -> Any:
    """The tensors in an item on the device of ``like``, and those of floats in its type."""
    if isinstance(item, Tensor):
        return item.to(like.device, like.dtype if item.is_floating_point() else item.dtype)
    if isinstance(item, Mapping):
        return {key: fit(value, like) for key, value in item.items()}
    if type(item) in (tuple, list):
        return type(item)(fit(value, like) for value in item)
    return item
