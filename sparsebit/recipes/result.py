"""The result of a search: the best model, its recipe, all other trials, and what limits it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import nn

from sparsebit.display import as_text, in_notebook, short_bytes
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.recipes.goals import Goals, Measured, speedup_of
from sparsebit.recipes.recipe import Recipe
from sparsebit.recipes.trial import Trial
from sparsebit.sparse import save as save_pruned
from sparsebit.storage import write_text
from sparsebit.storage.typed import to_plain


class GoalsNotMet(SparsebitError):
    """None of the recipes reaches the goals."""


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """The best recipe, its model, and all other results."""

    model: QuantModel = field(repr=False)
    float_model: nn.Module = field(repr=False)
    """The model that was quantized: the pruned one, or the original."""
    best: Trial
    base: Measured
    """The float model."""
    goals: Goals
    trials: tuple[Trial, ...]
    pareto: tuple[Trial, ...]
    """Trials that no other beats in metric, bytes and time together, smallest first."""
    limits: tuple[str, ...]
    """For every missed goal: by how much, and what limits it."""
    stopped: str
    """Why the search ended."""

    _repr_html_ = in_notebook

    @property
    def recipe(self) -> Recipe:
        """What was done to the model."""
        assert self.best.recipe is not None
        return self.best.recipe

    @property
    def yaml(self) -> str:
        """The recipe as text; see ``apply_recipe``."""
        return self.recipe.to_yaml()

    @property
    def measured(self) -> Measured:
        """The numbers of the best model."""
        assert self.best.measured is not None
        return self.best.measured

    @property
    def missed(self) -> Mapping[str, float]:
        """Each missed goal, and by which fraction."""
        return self.goals.shortfalls(self.base, self.measured)

    @property
    def met(self) -> bool:
        """Whether all goals are reached."""
        return not self.missed

    @property
    def speedup(self) -> float | None:
        """How many times as fast, if time was measured."""
        return speedup_of(self.base, self.measured) if self.measured.seconds is not None else None

    @property
    def verdict(self) -> str:
        """The result in words: what was reached, what was missed, and why."""
        head = "goals met" if self.met else "goals NOT met; this is the nearest"
        said = f"{head}: {self.best.name}: {self.goals.say(self.base, self.measured)}"
        return "\n".join([said, *(f"  limited by {limit}" for limit in self.limits)])

    def require_met(self) -> Compressed:
        """Return self if all goals are reached; otherwise raise an error that says what is missed."""
        if self.met:
            return self
        raise GoalsNotMet(
            "no recipe reaches what was asked for",
            got=self.goals.say(self.base, self.measured),
            hint="; ".join(self.limits) or None,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``recipe.yaml``, ``result.json``, the quantized model and, if it was pruned, the smaller float one."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.model.save(place / "quantized")
        if self.recipe.prune is not None:
            save_pruned(self.float_model, place / "pruned")
        write_text(place / "recipe.yaml", self.yaml)
        write_text(place / "result.json", json.dumps(self.to_dict(), indent=1) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = ("met", "missed", "verdict", "limits", "stopped", "goals", "base", "best", "trials")
        found = {name: to_plain(getattr(self, name)) for name in names}
        return found | {"pareto": [trial.name for trial in self.pareto]}

    def table(self) -> Table:
        """For a terminal: every trial in the order it was made; ``*`` is on the Pareto front."""
        timed = self.base.seconds is not None
        table = Table(title="recipes that were tried")
        for head in (
            "",
            "recipe",
            "metric",
            "size",
            *(["ms"] if timed else []),
            "tried in",
            "meets the goals",
        ):
            table.add_column(head, justify="left" if head in ("", "recipe", "meets the goals") else "right")
        on_front = {trial.name for trial in self.pareto}
        base = [f"{self.base.metric:.4g}", short_bytes(round(self.base.bytes))]
        times = [f"{self.base.seconds * 1e3:.3g}"] if self.base.seconds is not None else []
        table.add_row("", "float", *base, *times, "", "", end_section=True)
        for trial in self.trials:
            mark = "best" if trial.name == self.best.name else "*" if trial.name in on_front else ""
            if trial.measured is None:
                table.add_row(
                    "", trial.name, *(["", ""] + [""] * timed), f"{trial.seconds:.1f} s", trial.failed
                )
                continue
            missed = self.goals.shortfalls(self.base, trial.measured)
            seconds = trial.measured.seconds
            table.add_row(
                mark,
                trial.name,
                f"{trial.measured.metric:.4g}",
                short_bytes(round(trial.measured.bytes)),
                *([f"{seconds * 1e3:.3g}" if seconds is not None else ""] if timed else []),
                f"{trial.seconds:.1f} s",
                "yes" if not missed else f"no: {', '.join(missed)}",
            )
        return table

    def __rich__(self) -> Group:
        return Group(self.table(), Text(self.verdict), Text(f"stopped because {self.stopped}"))

    __str__ = as_text
