"""Dataclasses to and from plain data: fields read from a file must have the declared type."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import math
import os
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")
_MOST = 2**31


def to_plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, sequences as lists, paths as text, numbers that JSON cannot represent as None.

    For objects with a ``to_dict``, its result.

    Example:
        >>> to_plain({"ratio": float("inf"), "shape": (2, 3)})
        {'ratio': None, 'shape': [2, 3]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return to_plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, collections.abc.Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return to_plain(value.tolist())
    if isinstance(value, collections.abc.Iterable):
        return [to_plain(item) for item in value]
    return str(value)


def from_plain(kind: type[T], data: Any) -> T:
    """A dataclass from mappings and lists, as JSON leaves it; ``TypeError`` says what is wrong.

    Example:
        >>> @dataclasses.dataclass(frozen=True)
        ... class Size:
        ...     axes: tuple[int, ...]
        ...     name: str | None = None
        >>> from_plain(Size, {"axes": [1, 2]})
        Size(axes=(1, 2), name=None)
    """
    found: T = _read(kind, data, kind.__name__)
    return found


def _read(hint: Any, value: Any, path: str) -> Any:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, value, path)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        return _read_first([part for part in parts if part is not type(None)], value, path)
    if origin is typing.Literal:
        if isinstance(value, str | int) and value in parts:
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(parts[0], item, path) for item in value)
    elif origin is collections.abc.Mapping and isinstance(value, collections.abc.Mapping):
        return {_read(parts[0], key, path): _read(parts[1], item, path) for key, item in value.items()}
    elif (hint is float and type(value) in (int, float)) or (
        isinstance(hint, type) and type(value) is hint and (not isinstance(value, int) or abs(value) < _MOST)
    ):
        return value
    raise TypeError(f"{path} cannot be {value!r:.60}")


def _read_dataclass(kind: Any, value: Any, path: str) -> Any:
    hints = _fields(kind)
    if not isinstance(value, collections.abc.Mapping) or not value.keys() <= hints.keys():
        raise TypeError(f"{path} has no such fields: {value!r:.60}")
    return kind(**{name: _read(hints[name], item, f"{path}.{name}") for name, item in value.items()})


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _read_first(hints: list[Any], value: Any, path: str) -> Any:
    for hint in hints:
        try:
            return _read(hint, value, path)
        except TypeError:
            continue
    raise TypeError(f"{path} cannot be {value!r:.60}")
