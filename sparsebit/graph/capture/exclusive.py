"""While a model is captured, parts of torch are replaced for all of the process: one capture at a time.

The lock keeps two captures from putting each other's replacements back. A replacement itself must ask
``in_this_thread``: models that run in other threads meanwhile are not part of the capture.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

_ABSENT = object()
CAPTURING = threading.RLock()


def in_this_thread() -> Callable[[], bool]:
    """A function that says whether it is called in the thread that asks now."""
    thread = threading.get_ident()
    return lambda: threading.get_ident() == thread


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Give objects other attributes (owner, name, value) inside the block; afterwards they are as before.

    Example:
        >>> import math
        >>> with replaced((math, "pi", 3)):
        ...     math.pi
        3
    """
    before = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in changes]
    try:
        for change in changes:
            _put(*change)
        yield
    finally:
        for change in reversed(before):
            _put(*change)


def _put(owner: Any, name: str, value: Any) -> None:
    table = vars(owner)
    if not isinstance(table, dict):  # that of a class is read-only
        setattr(owner, name, value) if value is not _ABSENT else delattr(owner, name)
    elif value is _ABSENT:
        table.pop(name, None)
    else:
        table[name] = value  # not by setattr: a user's module may define its own
