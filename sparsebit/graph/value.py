"""What a node's result looks like: shapes and dtypes without the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_PLAIN = (bool, int, float, complex, str, type(None))
_PLAIN_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class TensorInfo(NamedTuple):
    """Shape and dtype of one tensor.

    Example:
        >>> TensorInfo((2, 3), torch.float16).nbytes
        12
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """How many elements the tensor has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense tensor of this shape and dtype."""
        return self.numel * self.dtype.itemsize


def describe(value: object) -> object:
    """Replace every tensor in ``value`` by its ``TensorInfo`` and keep the structure around it.

    Tuples (named ones and ``torch.Size`` too) become plain tuples, lists stay lists, any mapping becomes a
    dict; numbers, strings, dtypes and devices stay as they are. Anything else is opaque and becomes None:
    what a node carries in its ``meta`` must stay printable and copyable.

    Example:
        >>> describe((torch.zeros(2, 3), [1, None]))
        (TensorInfo(shape=(2, 3), dtype=torch.float32), [1, None])
    """
    if isinstance(value, Tensor):
        return TensorInfo(tuple(_plain_int(size) for size in value.shape), value.dtype)
    if isinstance(value, TensorInfo):
        return value
    if isinstance(value, tuple):
        return tuple(describe(item) for item in value)
    if isinstance(value, list):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return _plain_int(value)
    return value if isinstance(value, _PLAIN + _PLAIN_OF_TORCH) else None


def tensors_in(value: object) -> Iterator[TensorInfo]:
    """Every ``TensorInfo`` of a described value, depth first.

    Example:
        >>> [info.shape for info in tensors_in(describe({"a": torch.zeros(1), "b": [torch.zeros(2)]}))]
        [(1,), (2,)]
    """
    return (item for item in items_in(value) if isinstance(item, TensorInfo))


def real_tensors_in(*values: Any) -> list[Tensor]:
    """The tensors themselves in nested arguments, in order."""
    return [item for item in items_in(values) if isinstance(item, Tensor)]


def items_in(value: Any) -> Iterator[Any]:
    """Everything in nested tuples, lists, mappings and slices that is not one of these itself.

    Example:
        >>> list(items_in(({"a": 1}, slice(2, None), [3])))
        [1, 2, None, None, 3]
    """
    if isinstance(value, tuple | list) and not isinstance(value, TensorInfo):
        for item in value:
            yield from items_in(item)
    elif isinstance(value, Mapping):
        yield from items_in(list(value.values()))
    elif isinstance(value, slice):
        yield from items_in((value.start, value.stop, value.step))
    else:
        yield value


def _plain_int(size: object) -> int:
    # Recording uses int subclasses that note every conversion; describing must leave no notes.
    return int.__int__(size) if isinstance(size, int) else int(size)  # type: ignore[call-overload]
