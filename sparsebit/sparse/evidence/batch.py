"""One item of a data set: how to call the model with it, and how to take its loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError

Loss = Callable[..., Tensor]


class DataError(SparsebitError):
    """A criterion needs data or a loss that was not given, or cannot use what was."""


class Batch:
    """One item of the data: how to call the model with it, and what is left for the loss.

    A tensor is the model's one argument. Of a tuple or list the first is, and the rest goes to the loss behind the
    output: ``loss(output, *rest)``. A mapping is the model's keyword arguments: ``loss(output, mapping)``.
    """

    def __init__(self, item: Any, device: torch.device | None = None) -> None:
        item = move(item, device)
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.rest: tuple[Any, ...] = ()
        if isinstance(item, Mapping):
            self.kwargs, self.rest = dict(item), (item,)
        elif isinstance(item, tuple | list):
            if not item:
                raise DataError("a batch is empty", expected="a tensor, (inputs, targets...), or a mapping")
            first = item[0]
            self.args = tuple(first) if isinstance(first, tuple | list) else (first,)
            if isinstance(first, Mapping):
                self.args, self.kwargs = (), dict(first)
            self.rest = tuple(item[1:])
        else:
            self.args = (item,)

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


def move(item: Any, device: torch.device | None) -> Any:
    """The tensors in an item on a device; everything else as it is."""
    if isinstance(item, Tensor):
        return item.to(device) if device is not None else item
    if isinstance(item, Mapping):
        return {key: move(value, device) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return type(item)(move(value, device) for value in item) if type(item) in (tuple, list) else item
    return item


def fit(item: Any, like: Tensor) -> Any:
    """The tensors in an item on the device of ``like``, and those of floats in its type."""
    if isinstance(item, Tensor):
        return item.to(like.device, like.dtype if item.is_floating_point() else item.dtype)
    if isinstance(item, Mapping):
        return {key: fit(value, like) for key, value in item.items()}
    if type(item) in (tuple, list):
        return type(item)(fit(value, like) for value in item)
    return item
