"""Computations on indices, which stay on the CPU whatever ``torch.set_default_device`` says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def cpu_by_default(function: Callable[P, R]) -> Callable[P, R]:
    """Create tensors without a device on the CPU inside this function, which must not run the user's model.

    Example:
        >>> with torch.device("meta"):
        ...     cpu_by_default(torch.zeros)(1).device
        device(type='cpu')
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.empty(0).is_cpu:  # the block below would slow down every call of torch inside
            return function(*args, **kwargs)
        with torch.device("cpu"):
            return function(*args, **kwargs)

    return run
