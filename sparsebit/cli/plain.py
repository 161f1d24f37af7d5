"""Anything a command hands back, as data that JSON can hold."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, sequences as lists, paths as text, numbers JSON has no word for as None.

    Example:
        >>> plain({"ratio": float("inf"), "shape": (2, 3)})
        {'ratio': None, 'shape': [2, 3]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)
