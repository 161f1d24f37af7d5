"""Timing of calls: several in turn, and the spread of their ratio."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sparsebit.errors import SparsebitError
from sparsebit.progress import progress

ROUNDS = 15
SHORTEST_TURN = 0.002  # seconds; a shorter call is repeated within its turn
WARM_UP = 2  # calls that also fill caches and plan memory
NOISY = 2.0  # the 90 % quantile of the ratios over the 10 % quantile
Call = Callable[[], object]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Seconds of one call, over all rounds."""

    median: float
    low: float  # a tenth of the rounds were faster than this
    high: float  # a tenth were slower
    calls: int

    @property
    def milliseconds(self) -> float:
        """The median."""
        return 1e3 * self.median


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast as the baseline a call is: the ratios of all rounds.

    In one round, both are called directly after each other, so a busy machine slows both down equally.

    Example:
        >>> print(Ratio(median=2.8, low=2.6, high=2.9))
        2.80× (2.60–2.90)
        >>> print(Ratio(median=9.0, low=1.0, high=31.0))
        too noisy to tell (1.00–31.00×)
        >>> print(Ratio(median=0.5, low=0.3, high=0.8))
        slower, too noisy to tell by how much (0.30–0.80×)
    """

    median: float
    low: float
    high: float

    @property
    def noisy(self) -> bool:
        """Whether the rounds differ too much for the median to be meaningful."""
        return self.high > NOISY * self.low

    def __str__(self) -> str:
        if self.noisy:
            side = "slower, " if self.high < 1 else "faster, " if self.low > 1 else ""
            how = "too noisy to tell by how much" if side else "too noisy to tell"
            return f"{side}{how} ({self.low:.2f}–{self.high:.2f}×)"
        return f"{self.median:.2f}× ({self.low:.2f}–{self.high:.2f})"


class Timings(dict[str, Latency]):
    """The latency of every call by name, and the ratios between them."""

    def __init__(self, rounds: Mapping[str, list[float]], calls: Mapping[str, int]) -> None:
        super().__init__({name: _latency(found, calls[name]) for name, found in rounds.items()})
        self.rounds = dict(rounds)

    def speedup(self, name: str, baseline: str) -> Ratio:
        """How many times as fast as ``baseline`` the call ``name`` is."""
        pairs = zip(self.rounds[baseline], self.rounds[name], strict=True)
        ratios = [slow / max(fast, 1e-12) for slow, fast in pairs]
        low, high = _tenths(ratios)
        return Ratio(median=statistics.median(ratios), low=low, high=high)


def compare_latency(
    calls: Mapping[str, Call], *, seconds: float = 1.0, rounds: int = ROUNDS, shown: bool | None = None
) -> Timings:
    """Time several calls in turn.

    Args:
        calls: what to time, by name.
        seconds: to spend on each; every call has a turn in each round, however long it takes.
        rounds: how often they take turns.
        shown: whether to show progress; by default on a terminal.

    Example:
        >>> times = compare_latency({"a": lambda: sum(range(1000)), "b": lambda: None}, seconds=0.01, shown=False)
        >>> sorted(times), times.speedup("b", "a").median > 1
        (['a', 'b'], True)
    """
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    turn = max(seconds / rounds, SHORTEST_TURN)
    found: dict[str, list[float]] = {name: [] for name in calls}
    counts = dict.fromkeys(calls, 0)
    for _ in progress(range(rounds), "timing", shown=shown):
        for name, call in calls.items():
            start, count = time.perf_counter(), 0
            while True:
                call()
                count += 1
                elapsed = time.perf_counter() - start
                if elapsed >= turn:
                    break
            found[name].append(elapsed / count)
            counts[name] += count
    return Timings(found, counts)


def time_call(call: Call, *, seconds: float = 0.2, rounds: int = ROUNDS) -> float:
    """Seconds of one call: the median of several rounds.

    Example:
        >>> 0 < time_call(lambda: sum(range(1000)), seconds=0.01, rounds=3) < 1
        True
    """
    return compare_latency({"call": call}, seconds=seconds, rounds=rounds, shown=False)["call"].median


def measured_seconds(clock: Callable[[T], float], subject: T) -> float:
    """The seconds that a user's function measures (``latency=``, ``measure=``); an error if it returns no time.

    Example:
        >>> measured_seconds(lambda model: 0.5, "model")
        0.5
    """
    if not callable(clock):
        raise SparsebitError(
            "latency is measured by a function", expected="a function to seconds", got=f"{clock!r:.80}"
        )
    found: object = clock(subject)
    try:
        seconds = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise SparsebitError(
            "the function that measures latency did not return a time",
            expected="seconds, more than 0",
            got=f"{found!r:.80}",
        )
    return seconds


class PairedClock:
    """Seconds of calls that are measured at different times, comparable with each other.

    The first call is the reference. Every later one is timed in turns with it, and its time is the reference's first
    time divided by the median ratio: so it does not matter if the machine is busier now than before.
    """

    def __init__(self) -> None:
        self._reference: tuple[Call, float] | None = None

    def __call__(self, call: Call) -> float:
        """Seconds of one call."""
        if self._reference is None:
            self._reference = call, time_call(call)
            return self._reference[1]
        first, took = self._reference
        times = compare_latency({"first": first, "call": call}, seconds=0.2, shown=False)
        return took / times.speedup("call", "first").median


def _latency(times: list[float], calls: int) -> Latency:
    low, high = _tenths(times)
    return Latency(median=statistics.median(times), low=low, high=high, calls=calls)


def _tenths(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]
