"""One recipe that was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """That it took to find out."""
    plan: str = ""
    """Digest of where quantizers stand and with how many bits."""
    failed: str = ""

    @classmethod
    def read(cls, fields: Fields) -> Trial:
        """What ``to_plain`` made."""
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


def front(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials that no other beats in metric, bytes and time at once, smallest first."""
    done = [trial for trial in trials if trial.measured is not None]

    def numbers(trial: Trial) -> tuple[float, ...]:
        measured = trial.measured
        assert measured is not None
        return (-measured.metric, measured.bytes, measured.seconds or 0.0)

    kept: list[Trial] = []
    for trial in sorted(done, key=lambda t: (numbers(t)[1], numbers(t)[0], numbers(t)[2], t.name)):
        mine = numbers(trial)
        if not any(all(a <= b for a, b in zip(numbers(other), mine, strict=True)) for other in kept):
            kept.append(trial)
    return tuple(kept)
