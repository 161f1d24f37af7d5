"""How long calls take, measured side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparsebit.progress import progress

ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Times of single calls, in seconds."""

    median: float
    low: float
    """A tenth of the calls were faster than this."""
    high: float
    """A tenth were slower."""
    calls: int

    @property
    def milliseconds(self) -> float:
        """The median."""
        return 1e3 * self.median


def compare_latency(
    calls: Mapping[str, Callable[[], object]], *, seconds: float = 1.0, shown: bool | None = None
) -> dict[str, Latency]:
    """Time several calls in turn, so that whatever else the machine does meets all of them alike.

    Args:
        calls: what to time, by name.
        seconds: for each of them; each is called at least ten times.
        shown: whether to show progress; by default on a terminal.

    Example:
        >>> sorted(compare_latency({"a": lambda: sum(range(100)), "b": lambda: None}, seconds=0.01, shown=False))
        ['a', 'b']
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():  # the first ones pay for caches, threads and memory
        call()
        call()
    for _ in progress(range(ROUNDS), "timing", shown=shown):
        for name, call in calls.items():
            end = time.perf_counter() + seconds / ROUNDS
            while True:
                started = time.perf_counter()
                call()
                stopped = time.perf_counter()
                times[name].append(stopped - started)
                if stopped >= end:
                    break
    return {name: _summary(found) for name, found in times.items()}


def _summary(times: list[float]) -> Latency:
    tenths = statistics.quantiles(times, n=10)
    return Latency(median=statistics.median(times), low=tenths[0], high=tenths[-1], calls=len(times))
