"""One recipe that was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsebit.recipes.goals import Measured
from sparsebit.recipes.recipe import Recipe


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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "name": self.name,
            "structure": self.structure,
            "recipe": self.recipe.to_dict() if self.recipe else None,
            "measured": self.measured.to_dict() if self.measured else None,
            "seconds": self.seconds,
            "plan": self.plan,
            "failed": self.failed,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """What ``to_dict`` wrote."""
        recipe, measured = data["recipe"], data["measured"]
        return cls(
            name=data["name"],
            structure=data["structure"],
            recipe=Recipe.from_dict(recipe, data["name"]) if recipe else None,
            measured=Measured(**measured) if measured else None,
            seconds=data["seconds"],
            plan=data["plan"],
            failed=data["failed"],
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
