"""What a node's result looks like: shapes and dtypes without the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


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
    return value if isinstance(value, _PLAIN) else None


def tensors_in(value: object) -> Iterator[TensorInfo]:
    """Every ``TensorInfo`` of a described value, depth first.

    Example:
        >>> [info.shape for info in tensors_in(describe({"a": torch.zeros(1), "b": [torch.zeros(2)]}))]
        [(1,), (2,)]
    """
    if isinstance(value, TensorInfo):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def _plain_int(size: object) -> int:
    # Recording uses int subclasses that note every conversion; describing must leave no notes.
    return int.__int__(size) if isinstance(size, int) else int(size)  # type: ignore[call-overload]
