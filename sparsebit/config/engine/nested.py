"""Keys inside keys: walking and setting values in the nested mappings that YAML gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def leaves(data: Mapping[Any, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted paths to everything that is neither a mapping nor null, which leaves a key as it is.

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
    """The section at a path, made on the way where there is none; None where something else is in the way."""
    found: Any = data
    for part in parts:
        if found.get(part) is None:
            found[part] = {}
        found = found[part]
        if not isinstance(found, dict):
            return None
    return found  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """A copy in which every mapping is a dict and every list is new."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
