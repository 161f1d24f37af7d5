"""Schedules: where they change, how far, and that they end where they should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.pruning.sconfig import load_sconfig
from sparsebit.sparse.schedule import Schedule, make_schedule

SCHEDULES = st.builds(
    Schedule,
    kind=st.sampled_from(["one-shot", "iterative", "cubic"]),
    start=st.integers(0, 9),
    every=st.integers(1, 5),
    times=st.integers(1, 6),
    initial=st.floats(0, 0.3),
)


def ratio_at(schedule: Schedule, step: int, final: float) -> float | None:
    progress = schedule.progress_at(step)
    return None if progress is None else schedule.scale(progress, final)


@given(SCHEDULES, st.floats(0.3, 0.9))
def test_it_only_grows_and_ends_at_the_ratio(schedule: Schedule, final: float) -> None:
    ratios = [ratio_at(schedule, step, final) for step in range(60)]
    changes = {step: ratio for step, ratio in enumerate(ratios) if ratio is not None}
    assert min(changes) == schedule.start
    assert changes[max(changes)] == pytest.approx(final)
    assert list(changes.values()) == sorted(changes.values())
    assert all((step - schedule.start) % schedule.every == 0 for step in changes)


def test_the_cubic_one_is_that_of_the_paper() -> None:
    schedule = Schedule(kind="cubic", start=100, every=10, times=5, initial=0.2)
    for step in range(100, 151, 10):
        expected = 0.8 + (0.2 - 0.8) * (1 - (step - 100) / 50) ** 3
        assert ratio_at(schedule, step, 0.8) == pytest.approx(expected)


def test_equal_steps() -> None:
    schedule = Schedule(kind="iterative", start=0, every=2, times=4)
    assert [ratio_at(schedule, step, 0.8) for step in range(9)] == [
        pytest.approx(0.2), None, pytest.approx(0.4), None, pytest.approx(0.6), None, pytest.approx(0.8), None, None,
    ]  # fmt: skip


def test_a_ratio_of_zero_stays_zero() -> None:
    schedule = Schedule(kind="cubic", times=4, initial=0.3)
    assert [ratio_at(schedule, step, 0.0) for step in range(5)] == [0, 0, 0, 0, 0]


def test_from_a_config() -> None:
    sparser = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}
    section = {"TYPE": "AGP", "START": 3, "EVERY": 2, "TIMES": 4, "INITIAL_RATIO": 0.1}
    found = make_schedule(load_sconfig({"SPARSER": sparser, "SCHEDULE": section}).SCHEDULE)
    assert found == Schedule(kind="cubic", start=3, every=2, times=4, initial=0.1)
