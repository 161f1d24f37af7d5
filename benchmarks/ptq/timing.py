"""How long something takes compared with something else, measured in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Cost(NamedTuple):
    """Seconds on the clock, and of the processor (all threads), which other work on the machine disturbs less."""

    wall: float
    cpu: float


class Comparison(NamedTuple):
    """Medians over rounds of one and the other."""

    seconds: Cost
    baseline_seconds: Cost
    wall_ratio: float
    cpu_ratio: float
    rounds: int


def cost(function: Callable[[], object]) -> Cost:
    """One call."""
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def compare(
    function: Callable[[], object], baseline: Callable[[], object], *, rounds: int, patience: float
) -> Comparison:
    """Both in turns, the first of each pair changing; stops early when ``patience`` seconds have passed."""
    pairs: list[tuple[Cost, Cost]] = []
    start = time.perf_counter()
    for index in range(rounds):
        if pairs and time.perf_counter() - start > patience:
            break
        if index % 2 == 0:
            pairs.append((cost(function), cost(baseline)))
        else:
            other, own = cost(baseline), cost(function)
            pairs.append((own, other))
    return Comparison(
        seconds=_median([own for own, _ in pairs]),
        baseline_seconds=_median([other for _, other in pairs]),
        wall_ratio=statistics.median(own.wall / other.wall for own, other in pairs),
        cpu_ratio=statistics.median(own.cpu / other.cpu for own, other in pairs),
        rounds=len(pairs),
    )


def _median(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))
