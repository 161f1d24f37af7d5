"""Descriptions of a node's result: shapes and dtypes without the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


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


def kind_text(value: object) -> str:
    """What kind of result this is, for a message.

    Example:
        >>> kind_text(torch.zeros(2, 3)), kind_text([1])
        ('torch.float32 of shape [2, 3]', '[1]')
    """
    if isinstance(value, Tensor | TensorInfo):
        return f"{value.dtype} of shape {list(value.shape)}"
    return f"{value!r:.80}"


_PLAIN = (
    *(bool, float, complex, str, type(None), TensorInfo),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def describe(value: object) -> object:
    """Replace every tensor in ``value`` by its ``TensorInfo`` and keep the structure around it.

    Numbers, strings, dtypes and devices stay as they are. Anything else is opaque and becomes None: what a node carries
    in its ``meta`` must stay printable and copyable.

    Example:
        >>> describe((torch.zeros(2, 3), [1, None]))
        (TensorInfo(shape=(2, 3), dtype=torch.float32), [1, None])
    """
    return map_items(value, _describe_item)


def _describe_item(item: object) -> object:
    if isinstance(item, Tensor):
        return TensorInfo(tuple(_plain_int(size) for size in item.shape), item.dtype)
    if isinstance(item, int) and not isinstance(item, bool):
        return _plain_int(item)
    return item if isinstance(item, _PLAIN) else None


def map_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nesting of tuples, lists, mappings and slices around ``change`` of everything else.

    Tuples (named ones and ``torch.Size`` too) become plain tuples, lists stay lists, any mapping becomes a dict.
    """
    if isinstance(value, tuple | list) and not isinstance(value, TensorInfo):
        items = [map_items(item, change) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Mapping):
        return {key: map_items(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(map_items(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def map_tensors(value: object, change: Callable[[TensorInfo], Any]) -> Any:
    """A described value with every ``TensorInfo`` replaced.

    Example:
        >>> map_tensors([TensorInfo((2, 3), torch.int8), 1], lambda info: info.numel)
        [6, 1]
    """
    return map_items(value, lambda item: change(item) if isinstance(item, TensorInfo) else item)


def change_at(value: Any, path: Sequence[str | int], change: Callable[[Any], Any]) -> Any:
    """Nested arguments with ``change`` of what is at a path of keys, positions and names of a slice's ends.

    Example:
        >>> change_at((1, [2, slice(3, 4)]), (1, 1, "stop"), lambda end: end * 2)
        (1, [2, slice(3, 8, None)])
    """
    if not path:
        return change(value)
    head, *rest = path
    if isinstance(value, slice):
        parts = {name: getattr(value, name) for name in ("start", "stop", "step")}
        return slice(*change_at(parts, path, change).values())
    if isinstance(value, Mapping):
        return {**value, head: change_at(value.get(head), rest, change)}
    items = list(value)
    items[int(head)] = change_at(items[int(head)], rest, change)
    return tuple(items) if isinstance(value, tuple) else items


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
    """All items in nested tuples, lists, mappings and slices that are not such containers themselves.

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
