"""Where a shrunk model came from: enough to make it again from the original class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sparsebit.storage import ArtifactError

Form = Literal["graph", "module"]
_SHORT = 4096


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


def describe_example(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Example inputs as JSON data: sizes and types of tensors, the values of short ones of integers, and plain values.

    None where there are none. Where one cannot be told in JSON, its type is: {"lost": "MyInput"}.

    Example:
        >>> describe_example((torch.zeros(1, 2),), {"use_cache": False})
        {'args': [['float32', [1, 2]]], 'kwargs': {'use_cache': {'value': False}}}
    """
    if not args and not kwargs:
        return None
    try:
        return {
            "args": [_spell(value) for value in args],
            "kwargs": {name: _spell(value) for name, value in kwargs.items()},
        }
    except _Lost as lost:
        return {"lost": str(lost)}


def example_from(described: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any] | None]:
    """Inputs of the sizes that were described, of zeros where values were not told; nothing where nothing was."""
    if described is None:
        return None, None
    if "lost" in described:
        raise ArtifactError(
            "the example inputs of this model could not be saved with it",
            got=f"a {described['lost']} among them",
            hint="pass example_inputs= or example_kwargs= to load()",
        )
    args = tuple(map(_read, described["args"]))
    return args or None, {name: _read(each) for name, each in described["kwargs"].items()} or None


class _Lost(Exception):
    """An input that JSON cannot hold."""


def _spell(value: Any) -> Any:
    if isinstance(value, Tensor):
        told = [str(value.dtype).removeprefix("torch."), list(value.shape)]
        short = value.numel() <= _SHORT and not value.is_floating_point() and not value.is_complex()
        return [*told, value.tolist()] if short else told  # lengths and indices decide what a model does
    if (
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return {"value": value}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_spell(item) for item in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _spell(item) for key, item in value.items()}}
    raise _Lost(type(value).__name__)


def _read(told: Any) -> Any:
    if isinstance(told, Mapping):
        ((kind, held),) = told.items()
        if kind == "value":
            return held
        if kind == "dict":
            return {key: _read(item) for key, item in held.items()}
        items = [_read(item) for item in held]
        return tuple(items) if kind == "tuple" else items
    dtype, shape, *values = told
    if values:
        return torch.tensor(values[0], dtype=getattr(torch, dtype)).reshape(shape)
    return torch.zeros(shape, dtype=getattr(torch, dtype))
