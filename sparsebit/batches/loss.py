"""How a loss is called: with the output of the model, and what a batch holds behind the inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsebit.batches.calls import Call, show_shapes
from sparsebit.batches.reading import DataError
from sparsebit.errors import SparsebitError

Loss = Callable[..., Tensor]


def call_loss(loss: Loss, output: Any, rest: Sequence[Any]) -> Tensor:
    """``loss(output, *rest)``: one number that can be differentiated, or an error.

    Example:
        >>> import torch
        >>> weight = torch.ones(2, requires_grad=True)
        >>> call_loss(torch.nn.functional.mse_loss, 2 * weight, (torch.zeros(2),))
        tensor(4., grad_fn=<MseLossBackward0>)
    """
    if isinstance(loss, type) or not callable(loss):
        raise DataError(
            "the loss is not a function",
            expected="loss(output, *rest), where rest is what a batch holds after the inputs, such as labels",
            got=f"{loss!r:.80}",
            hint=f"pass an object of the class: {loss.__name__}()" if isinstance(loss, type) else None,
        )
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
    try:
        value = loss(output, *rest)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        if isinstance(error, SparsebitError):
            raise
        raise DataError(
            f"the loss raised {type(error).__name__}: {str(error).partition(chr(10))[0]}",
            got=show_shapes(Call((output, *rest))),
            hint="check the labels: many losses need whole numbers (int64), or the type of the output",
        ) from error
    return require_loss(value)


def require_loss(value: Any) -> Tensor:
    """The value of a loss, if it is one number that depends on the weights."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        raise DataError(
            "the loss is not a number that depends on the weights",
            got=f"{type(value).__name__}{list(value.shape) if isinstance(value, Tensor) else ''}",
            hint="return a scalar tensor, computed from the output without detach()",
        )
    return value
