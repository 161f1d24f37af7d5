"""The best trials: small, accurate and fast are good, and what failed is not among them."""

from __future__ import annotations

from sparsebit.recipes import Measured, Trial
from sparsebit.recipes.trial import best_trials


def trial(name: str, measured: Measured | None) -> Trial:
    return Trial(name=name, structure="", recipe=None, measured=measured, seconds=1.0)


def test_a_trial_is_kept_for_any_one_thing_that_it_is_best_in() -> None:
    trials = [
        trial("failed", None),
        trial("accurate", Measured(metric=0.9, bytes=8, seconds=3)),
        trial("worse in all", Measured(metric=0.5, bytes=9, seconds=4)),
        trial("fast", Measured(metric=0.6, bytes=7, seconds=1)),
        trial("small", Measured(metric=0.6, bytes=2, seconds=3)),
        trial("slower than small", Measured(metric=0.6, bytes=2, seconds=4)),
    ]
    assert [kept.name for kept in best_trials(trials)] == ["small", "fast", "accurate"]
