"""The one timer: calls in turn, ratios by round, and when it refuses to say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.runtime import PairedClock, Ratio, compare_latency, time_call, timing
from sparsebit.runtime.timing import measured_seconds


class Machine:
    """A clock of its own: a call takes the seconds it says, times how busy the machine is."""

    def __init__(self) -> None:
        self.now, self.busy, self.order = 0.0, 1.0, ""

    def perf_counter(self) -> float:
        return self.now

    def call(self, name: str, seconds: float, growth: float = 1.0) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds * self.busy
            self.busy *= growth
            self.order += name

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_calls_take_turns_and_short_ones_are_repeated(machine: Machine) -> None:
    calls = {"a": machine.call("a", 1.0), "b": machine.call("b", 0.5)}
    times = compare_latency(calls, seconds=4.0, rounds=4, shown=False)
    assert machine.order == "aabb" + "abb" * 4
    assert times["a"].median == times["a"].low == times["a"].high == 1.0 and times["a"].milliseconds == 1000
    assert times["a"].calls == 4 and times["b"].calls == 8
    assert times.speedup("b", "a").median == 2.0 and str(times.speedup("b", "a")) == "2.00× (2.00–2.00)"


def test_a_machine_that_slows_down_changes_no_ratio(machine: Machine) -> None:
    calls = {"a": machine.call("a", 1.0, 1.05), "b": machine.call("b", 0.5, 1.05)}
    times = compare_latency(calls, seconds=0.0, shown=False)
    ratio = times.speedup("b", "a")
    assert times["a"].high > 2.5 * times["a"].low  # the times themselves say nothing
    assert ratio.median == pytest.approx(2 / 1.05) and not ratio.noisy


def test_rounds_that_contradict_each_other_give_no_ratio(machine: Machine) -> None:
    def sometimes_slow() -> None:
        machine.now += 36.9 if machine.order.count("b") % 3 else 1.0
        machine.order += "b"

    times = compare_latency({"a": machine.call("a", 30.0), "b": sometimes_slow}, seconds=0.0, shown=False)
    ratio = times.speedup("b", "a")
    assert ratio.noisy and str(ratio).startswith("too noisy to tell (0.81–30.00×)")
    assert not Ratio(median=1.0, low=0.8, high=1.5).noisy


def test_clocked_models_stay_comparable_when_the_machine_gets_busier(machine: Machine) -> None:
    clock = PairedClock()
    first = clock(machine.call("a", 8.0))
    machine.busy = 5.0
    assert first == 8.0 and clock(machine.call("b", 4.0)) == pytest.approx(4.0)
    assert clock(machine.call("c", 2.0)) == pytest.approx(2.0)


def test_one_call_is_its_median(machine: Machine) -> None:
    assert time_call(machine.call("a", 0.25), rounds=1) == 0.25


@pytest.mark.parametrize("found", [math.nan, math.inf, 0, -1.0, "fast", None])
def test_a_function_that_measures_returns_a_time(found: Any) -> None:
    with pytest.raises(SparsebitError, match=r"did not return a time\n.*seconds, more than 0"):
        measured_seconds(lambda model: found, "model")
    with pytest.raises(SparsebitError, match="latency is measured by a function"):
        measured_seconds(found, "model")
