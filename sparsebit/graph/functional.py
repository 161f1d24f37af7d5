"""Functions that captured graphs call and torch lacks: out-of-place writes, autograd functions, checks, modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import has_side_effect

from sparsebit.errors import CaptureError


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """``tensor[index] = value`` on a copy.

    Example:
        >>> set_item(torch.zeros(3), 1, 5.0)
        tensor([0., 5., 0.])
    """
    result = tensor.clone()
    result[index] = value
    return result


def overwrite(tensor: Tensor, source: Tensor) -> Tensor:
    """``tensor.copy_(source)`` on a new tensor: the source's numbers in the shape and dtype of ``tensor``."""
    return source.to(device=tensor.device, dtype=tensor.dtype, copy=True).expand_as(tensor).contiguous()


def invoke(value: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of something that is not a tensor, such as a shape.

    Example:
        >>> invoke(torch.Size([2, 3]), "numel")
        6
    """
    return getattr(value, method)(*args, **kwargs)


@dataclass(frozen=True)
class AutogradCall:
    """``SomeFunction.apply`` as a separate function; as a bound method, its class would be lost in generated code."""

    function: type[torch.autograd.Function]

    @property
    def __name__(self) -> str:
        return self.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply the function with its own backward pass."""
        return self.function.apply(*args, **kwargs)


@has_side_effect
def check_branch(taken: bool, recorded: bool, place: str) -> None:
    """Raise an error if the model would take a different branch on a size than when it was recorded.

    The graph holds only the branch that was taken; with other sizes its result would differ from the model's.
    """
    # not ``!=``, which torch.compile cannot do with its own truth values
    if not taken if recorded else taken:
        raise CaptureError(
            f"a branch on a size was {recorded} when the model was captured and is {taken} for this input",
            where=place,
            hint="capture the model again with example inputs of these sizes",
        )


class ModeConstant(nn.Module):
    """A Python value that differs between training and evaluation: a dropout probability, a flag."""

    opened = True  # recorded as what it gives, when a captured graph is captured again

    def __init__(self, when_training: Any, when_evaluating: Any) -> None:
        super().__init__()
        self.when_training, self.when_evaluating = when_training, when_evaluating

    def forward(self) -> Any:
        """The value of the current mode."""
        return self.when_training if self.training else self.when_evaluating

    def extra_repr(self) -> str:
        """Both values."""
        return f"train={self.when_training!r}, eval={self.when_evaluating!r}"
