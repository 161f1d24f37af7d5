"""Process-wide state: parts of torch that are replaced, and warning filters.

While a model is captured or translated, one thread at a time replaces them. ``exclusively`` keeps two threads from
taking each other's replacements for torch itself, and from putting them back. A replacement must ask
``in_this_thread``: models that run in other threads meanwhile are not part of the capture.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

_ABSENT = object()
_Given = ParamSpec("_Given")
_Yielded = TypeVar("_Yielded")
CAPTURING = threading.RLock()


def in_this_thread() -> Callable[[], bool]:
    """A function that returns whether it is called in the current thread."""
    thread = threading.get_ident()
    return lambda: threading.get_ident() == thread


def exclusively(
    function: Callable[_Given, Iterator[_Yielded]],
) -> Callable[_Given, contextlib.AbstractContextManager[_Yielded]]:
    """``contextlib.contextmanager`` for blocks that replace parts of torch: one of them at a time.

    The lock is taken before the first line, so what the block reads from torch is not another thread's replacement.
    """

    @contextlib.contextmanager
    @functools.wraps(function)
    def locked(*args: _Given.args, **kwargs: _Given.kwargs) -> Iterator[_Yielded]:
        with CAPTURING:
            yield from function(*args, **kwargs)

    return locked


@exclusively
def without_warnings() -> Iterator[None]:
    """No warnings inside the block, from any thread; afterwards they are shown as before.

    Example:
        >>> with without_warnings():
        ...     warnings.warn("not shown")
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes (owner, name, value) of objects inside the block; afterwards they are restored.

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
