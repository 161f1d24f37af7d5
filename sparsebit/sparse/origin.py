"""Where a shrunk model came from: enough to make it again from the original class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Form = Literal["graph", "module"]


@dataclass(frozen=True, eq=False)
class Origin:
    """The config, the graph's name, what was kept of it, and the sizes of the inputs it was recorded with.

    ``form`` is "graph", or "module" for a model of the user's own class.
    """

    config: dict[str, Any]
    graph: str
    kept: Mapping[str, Tensor]
    inputs: dict[str, Any] | None
    form: Form = "graph"


def describe_example(inputs: Any, kwargs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Sizes and types of example inputs as JSON data, where they are plain tensors; None where they are not.

    Example:
        >>> describe_example(torch.zeros(1, 2), None)
        {'args': [['float32', [1, 2]]], 'kwargs': {}}
    """
    if (inputs is None or inputs == ()) and not kwargs:
        return None
    args = list(inputs) if type(inputs) in (tuple, list) else [] if inputs is None else [inputs]
    named = dict(kwargs or {})
    if not all(isinstance(value, Tensor) for value in [*args, *named.values()]):
        return None
    return {
        "args": [_spell(value) for value in args],
        "kwargs": {name: _spell(value) for name, value in named.items()},
    }


def example_from(described: Mapping[str, Any] | None) -> tuple[Any, dict[str, Tensor] | None]:
    """Zeros of the sizes that were described; nothing where nothing was."""
    if described is None:
        return None, None
    args = tuple(_zeros(*each) for each in described["args"])
    return args or None, {name: _zeros(*each) for name, each in described["kwargs"].items()} or None


def _spell(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def _zeros(dtype: str, shape: list[int]) -> Tensor:
    return torch.zeros(shape, dtype=getattr(torch, dtype))
