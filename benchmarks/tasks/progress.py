"""A progress bar that stays away from work too short to wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")
PATIENCE_SECONDS = 1.0


def track(items: Sequence[T], description: str, *, console: Console | None = None) -> Iterator[T]:
    """Yield the items; on a terminal, show a bar once they have taken a second and are not all done."""
    console = console or Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    row = bar.add_task(description, total=len(items))
    start = time.monotonic()
    shown = False
    try:
        for item in items:
            if not shown and time.monotonic() - start > PATIENCE_SECONDS:
                bar.start()
                shown = True
            yield item
            bar.advance(row)
    finally:
        if shown:
            bar.stop()
