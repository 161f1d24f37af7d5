"""Schedules: where they change, how far, and that they end where they should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.config.pruning.sconfig import load_sconfig
from sparsebit.config.pruning.sections import ScheduleSection
from sparsebit.sparse.schedule import progress_at, ratio_at

SCHEDULES = st.builds(
    ScheduleSection,
    TYPE=st.sampled_from(["one-shot", "iterative", "cubic"]),
    START=st.integers(0, 9),
    EVERY=st.integers(1, 5),
    TIMES=st.integers(1, 6),
    INITIAL_RATIO=st.floats(0, 0.3),
)


def ratio(schedule: ScheduleSection, step: int, final: float) -> float | None:
    progress = progress_at(schedule, step)
    return None if progress is None else ratio_at(schedule, progress, final)


@given(SCHEDULES, st.floats(0.3, 0.9))
def test_it_only_grows_and_ends_at_the_ratio(schedule: ScheduleSection, final: float) -> None:
    ratios = [ratio(schedule, step, final) for step in range(60)]
    changes = {step: ratio for step, ratio in enumerate(ratios) if ratio is not None}
    assert min(changes) == schedule.START
    assert changes[max(changes)] == pytest.approx(final)
    assert list(changes.values()) == sorted(changes.values())
    assert all((step - schedule.START) % schedule.EVERY == 0 for step in changes)


def test_the_cubic_one_is_that_of_the_paper() -> None:
    schedule = ScheduleSection(TYPE="cubic", START=100, EVERY=10, TIMES=5, INITIAL_RATIO=0.2)
    for step in range(100, 151, 10):
        expected = 0.8 + (0.2 - 0.8) * (1 - (step - 100) / 50) ** 3
        assert ratio(schedule, step, 0.8) == pytest.approx(expected)


def test_equal_steps() -> None:
    schedule = ScheduleSection(TYPE="iterative", START=0, EVERY=2, TIMES=4)
    assert [ratio(schedule, step, 0.8) for step in range(9)] == [
        pytest.approx(0.2), None, pytest.approx(0.4), None, pytest.approx(0.6), None, pytest.approx(0.8), None, None,
    ]  # fmt: skip


def test_a_ratio_of_zero_stays_zero() -> None:
    schedule = ScheduleSection(TYPE="cubic", TIMES=4, INITIAL_RATIO=0.3)
    assert [ratio(schedule, step, 0.0) for step in range(5)] == [0, 0, 0, 0, 0]


def test_from_a_config() -> None:
    sparser = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}
    section = {"TYPE": "AGP", "START": 3, "EVERY": 2, "TIMES": 4, "INITIAL_RATIO": 0.1}
    found = load_sconfig({"SPARSER": sparser, "SCHEDULE": section}).SCHEDULE
    assert [progress_at(found, step) for step in (2, 3, 11)] == [None, 0.0, 1.0]
