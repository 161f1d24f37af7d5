"""One tried recipe and its result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparsebit.analysis.pareto_front import pareto_front
from sparsebit.recipes.goals import Measured
from sparsebit.recipes.recipe import Recipe
from sparsebit.storage import Fields


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A recipe and its measurements; ``failed`` says why there are none."""

    name: str
    structure: str
    recipe: Recipe | None
    measured: Measured | None
    seconds: float
    """Duration of the trial."""
    plan: str = ""
    """Digest of the places and bits of the quantizers."""
    failed: str = ""

    @classmethod
    def read(cls, fields: Fields) -> Trial:
        """Read the result of ``to_plain``."""
        name, recipe, measured = fields.text("name"), fields.value("recipe"), fields.value("measured")
        return cls(
            name=name,
            structure=fields.text("structure"),
            recipe=Recipe.from_dict(recipe, name) if recipe is not None else None,
            measured=Measured.read(fields.section("measured")) if measured is not None else None,
            seconds=fields.number("seconds"),
            plan=fields.text("plan"),
            failed=fields.text("failed"),
        )


def best_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials that no other beats in bytes, metric and time together, smallest first."""
    done = [(trial.measured, trial) for trial in trials if trial.measured is not None]
    best = pareto_front(done, lambda pair: (pair[0].bytes, -pair[0].metric, pair[0].seconds or 0.0))
    return tuple(trial for _, trial in best)
