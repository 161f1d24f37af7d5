"""Goals: what is missed, by how much, and in words."""

from __future__ import annotations

from typing import Any

import pytest

from sparsebit.errors import ConfigError
from sparsebit.recipes import Goals, Measured

BASE = Measured(metric=0.9, bytes=1000, seconds=0.01)


@pytest.mark.parametrize(
    ("goals", "got", "missed"),
    [
        (Goals(max_drop=0.1), Measured(metric=0.8, bytes=1000), {}),
        (Goals(max_drop=0.09), Measured(metric=0.72, bytes=1), {"metric": 0.1}),
        (Goals(size=0.25), Measured(metric=0.9, bytes=250), {}),
        (Goals(size=0.25), Measured(metric=0.9, bytes=300), {"size": 0.2}),
        (Goals(size=300), Measured(metric=0.9, bytes=450), {"size": 0.5}),
        (Goals(speedup=2), Measured(metric=0.9, bytes=1, seconds=0.005), {}),
        (Goals(speedup=2), Measured(metric=0.9, bytes=1, seconds=0.00625), {"speedup": 0.2}),
        (Goals(speedup=2), Measured(metric=0.9, bytes=1), {"speedup": 0.5}),
    ],
)
def test_what_is_missed_and_by_how_much(goals: Goals, got: Measured, missed: dict[str, float]) -> None:
    assert goals.shortfalls(BASE, got) == pytest.approx(missed)


def test_goals_and_what_was_reached_in_words() -> None:
    said = Goals(size=0.25, speedup=2).say(BASE, Measured(metric=0.85, bytes=300, seconds=0.004))
    assert said == (
        "the metric is 0.85 (float 0.9, 0.05 lost, 0.01 allowed); the parameters take 300 B (30.0% of float, asked for"
        " 250 B); a call takes 4 ms (2.50 times as fast, asked for 2)"
    )


@pytest.mark.parametrize("wrong", ["4", [0.5], b"1"])
@pytest.mark.parametrize("name", ["max_drop", "speedup", "size"])
def test_a_goal_is_a_number(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected a number"):
        Goals(**{name: wrong})
