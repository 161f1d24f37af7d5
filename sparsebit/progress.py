"""Progress for a person at a terminal; silence everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 1.0  # seconds before anything is shown


def length(items: Iterable[object]) -> int | None:
    """How many there are, or None where nobody knows: a loader of a stream has a length that raises.

    Example:
        >>> length([1, 2]), length(iter([1, 2]))
        (2, None)
    """
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:
        return None


def progress(
    items: Iterable[T], what: str, *, total: int | None = None, shown: bool | None = None
) -> Iterator[T]:
    """Go through ``items`` with a bar, the count and the time left, once it has taken more than a moment.

    Args:
        items: what to go through.
        what: the words before the bar.
        total: how many there are, where ``items`` cannot tell.
        shown: True or False to decide; by default only a terminal gets to see it.

    Example:
        >>> list(progress([1, 2, 3], "counting", shown=False))
        [1, 2, 3]
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if shown is False or (shown is None and not console.is_terminal):
        yield from items
        return
    if total is None:
        total = length(items)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)
    started, task = time.monotonic(), bar.add_task(what, total=total)
    try:
        for item in items:
            if not bar.live.is_started and time.monotonic() - started > PATIENCE:
                bar.start()
            yield item
            bar.advance(task)
    finally:
        bar.stop()
