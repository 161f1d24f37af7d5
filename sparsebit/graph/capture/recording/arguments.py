"""Walk nested call arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def items_in(value: Any) -> Iterator[Any]:
    """Everything in nested tuples, lists, dicts and slices that is not one of these itself."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from items_in(item)
    elif isinstance(value, dict):
        yield from items_in(list(value.values()))
    elif isinstance(value, slice):
        yield from items_in((value.start, value.stop, value.step))
    else:
        yield value


def tensors_in(*values: Any) -> list[Tensor]:
    """The tensors in nested arguments, in order."""
    return [item for item in items_in(values) if isinstance(item, Tensor)]
