"""Trials: the best_trials of those that no other beats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparsebit.recipes import Measured, Trial
from sparsebit.recipes.trial import best_trials


def trial(name: str, metric: float, size: float) -> Trial:
    measured = Measured(metric=metric, bytes=size)
    return Trial(name=name, structure="", recipe=None, measured=measured, seconds=1.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_beats_everything_else_and_nothing_on_it_beats_another(
    points: list[tuple[int, int]],
) -> None:
    trials = [trial(str(index), *map(float, point)) for index, point in enumerate(points)]
    kept = best_trials(trials)

    def beats(a: Trial, b: Trial) -> bool:
        assert a.measured and b.measured
        return a.measured.metric >= b.measured.metric and a.measured.bytes <= b.measured.bytes

    assert all(any(beats(a, b) for a in kept) for b in trials)
    assert not any(beats(a, b) for a in kept for b in kept if a is not b)
