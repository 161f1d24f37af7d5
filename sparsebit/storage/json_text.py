"""JSON that someone may have edited: every text gives plain data or our error."""

from __future__ import annotations

import json
from typing import Any

from sparsebit.errors import ArtifactError

MOST_DEPTH = 100


def read_json(data: bytes, source: object) -> Any:
    """Plain data without NaN, without invalid Unicode, and without nesting too deep for later steps."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse)
        canonical(value)
        depth = _depth(value)
    except (ValueError, RecursionError) as error:  # JSON, Unicode, integers of thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else _short(error)
        raise ArtifactError(f"{source} cannot be read: {reason}", hint="save the model again") from None
    if depth > MOST_DEPTH:
        raise ArtifactError(f"{source} cannot be read: it is nested too deeply", hint="save the model again")
    return value


def canonical(value: Any) -> bytes:
    """The canonical text of plain data, for digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _short(error: Exception) -> str:
    return str(error).encode("ascii", "backslashreplace").decode()[:200]
