"""How a loss is called: with the output of the model, and what a batch holds behind the inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sparsebit.batches.reading import DataError

Loss = Callable[..., Tensor]


def call_loss(loss: Loss, output: Any, rest: Sequence[Any]) -> Tensor:
    """``loss(output, *rest)``: one number that can be differentiated, or an error.

    Example:
        >>> import torch
        >>> weight = torch.ones(2, requires_grad=True)
        >>> call_loss(torch.nn.functional.mse_loss, 2 * weight, (torch.zeros(2),))
        tensor(4., grad_fn=<MseLossBackward0>)
    """
    try:
        inspect.signature(getattr(loss, "forward", loss)).bind(output, *rest)
    except ValueError:  # code without a signature
        pass
    except TypeError as error:
        raise DataError(
            f"the loss cannot be called with the output and {len(rest)} more values of the batch",
            expected="loss(output, *rest), where rest is what a batch holds after the inputs, such as labels",
            got=str(error),
        ) from None
    return require_loss(loss(output, *rest))


def require_loss(value: Any) -> Tensor:
    """The value of a loss, if it is one number that depends on the weights."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise DataError(
            "the loss is not a number that depends on the weights",
            got=f"{type(value).__name__}{list(value.shape) if isinstance(value, Tensor) else ''}",
            hint="return a scalar tensor, computed from the output without detach()",
        )
    return value
