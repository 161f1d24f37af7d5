"""Nested mappings from YAML: iterate over their values, and set values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def leaves(data: Mapping[Any, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted paths to all values that are not mappings; null values are omitted, because they leave a key unchanged.

    Example:
        >>> list(leaves({"QSCHEME": "x", "QUANTIZER": {"BIT": 4, "TYPE": None}}))
        [('QSCHEME', 'x'), ('QUANTIZER.BIT', 4)]
    """
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def section_at(data: dict[str, Any], parts: Sequence[str]) -> dict[str, Any] | None:
    """The section at a path, created if it does not exist; None if a value that is not a section is in the way."""
    found: Any = data
    for part in parts:
        if found.get(part) is None:
            found[part] = {}
        found = found[part]
        if not isinstance(found, dict):
            return None
    return found  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """A copy in which every mapping is a dict and every list is copied."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
