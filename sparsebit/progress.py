"""Progress display: a bar on a terminal; elsewhere nothing, or a line every few seconds if requested."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 1.0  # seconds before anything is shown
TICK = 0.25  # seconds between two checks of the clock
BETWEEN = 10.0  # seconds between two lines, where there is no terminal

_in_lines = False  # whether to print lines if there is no terminal
_showing = False  # a nested bar would disturb the one that is shown


def length(items: Iterable[object]) -> int | None:
    """The length, or None if it is unknown: the length of a streaming loader raises an error.

    Example:
        >>> length([1, 2]), length(iter([1, 2]))
        (2, None)
    """
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:
        return None


@contextlib.contextmanager
def lines_without_terminal() -> Iterator[None]:
    """Inside the block, progress is also printed as lines every few seconds, on the error stream."""
    global _in_lines
    before, _in_lines = _in_lines, True
    try:
        yield
    finally:
        _in_lines = before


def progress(
    items: Iterable[T], what: str, *, total: int | None = None, shown: bool | None = None
) -> Generator[T, None, None]:
    """Iterate over ``items`` with a bar, the count and the time left, shown after a moment.

    Args:
        items: what to iterate over.
        what: the text before the bar.
        total: the number of items, if ``items`` has no length.
        shown: True or False to decide; by default it is shown on a terminal.

    Example:
        >>> list(progress([1, 2, 3], "counting", shown=False))
        [1, 2, 3]
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    if total is None:
        total = length(items)
    console = Console(stderr=True)
    if shown is False or _showing:
        yield from items
    elif shown is None and not console.is_terminal:
        yield from _told(items, what, total) if _in_lines else items
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with _bar(console, columns, what, total) as (start, advance, _):
            started = time.monotonic()
            for item in items:
                if time.monotonic() - started > PATIENCE:
                    start()
                yield item
                advance()


@contextlib.contextmanager
def waiting(
    what: str, *, seconds: float | None = None, shown: bool | None = None
) -> Iterator[Callable[[str], None]]:
    """Show that a long operation is running, and for how long; yields a function that changes the text.

    Args:
        what: the operation.
        seconds: its time limit, if known; then the time left is shown.
        shown: True or False to decide; by default it is shown on a terminal.

    Example:
        >>> with waiting("thinking", shown=False) as say:
        ...     say("thinking harder")
    """
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if shown is False or _showing or (shown is None and not console.is_terminal):
        yield lambda words: None
        return
    known = (BarColumn(), TextColumn("at most"), TimeRemainingColumn(), TextColumn("left"))
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *(known if seconds else (TimeElapsedColumn(),)),
    )
    with _bar(console, columns, what, seconds) as (start, advance, say):
        over, started = threading.Event(), time.monotonic()

        def tick() -> None:  # a single long call cannot report progress
            while not over.wait(TICK):
                advance(TICK)
                if time.monotonic() - started > PATIENCE:
                    start()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield say
        finally:
            over.set()
            thread.join()


Handles = tuple[Callable[[], None], Callable[..., None], Callable[[str], None]]


@contextlib.contextmanager
def _bar(console: Any, columns: tuple[Any, ...], what: str, total: float | None) -> Iterator[Handles]:
    """A bar that is not shown yet: functions to show it, to advance it, and to change its text."""
    global _showing
    from rich.progress import Progress

    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(what, total=total)

    def start() -> None:
        if not bar.live.is_started:
            bar.start()

    def advance(amount: float = 1) -> None:
        bar.advance(task, amount)

    def say(words: str) -> None:
        bar.update(task, description=words)

    _showing = True
    try:
        yield start, advance, say
    finally:
        _showing = False
        bar.stop()


def _told(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    """Print a line every few seconds: how many items are done, and the time left."""
    started = last = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - last > BETWEEN:
            last = now
            left = (
                f"/{total}, about {(now - started) / done * (total - done):.0f} s left"
                if total and done
                else ""
            )
            sys.stderr.write(f"{what}: {done}{left}\n")
        yield item
