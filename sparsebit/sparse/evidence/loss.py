"""The loss of a model's output on one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sparsebit.batches import Batch, DataError

Loss = Callable[..., Tensor]


def measure_loss(batch: Batch, output: Any, loss: Loss | None) -> Tensor:
    """``loss(output, *batch.rest)``: with the items of a tuple behind the inputs, or with the whole dict.

    Without a loss, the one that the output holds.
    """
    value = loss(output, *batch.rest) if loss is not None else _own_loss(output)
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
            "this criterion needs gradients, and there is no loss to differentiate",
            hint="pass loss=..., such as torch.nn.functional.cross_entropy, called with the output and the targets",
        )
    return found
