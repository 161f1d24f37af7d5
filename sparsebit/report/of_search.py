"""The report of a search for a recipe: its best model, and all trials as the trade-off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparsebit.recipes import Compressed
from sparsebit.report.content import ParetoPoint, Report
from sparsebit.report.of_model import collect


def report_search(
    found: Compressed, data: Iterable[Any], *, name: str | None = None, progress: bool | None = None
) -> Report:
    """The result of ``sparsebit.compress`` as the content of a page.

    Args:
        found: the result of the search.
        data: batches to profile the best model's errors and ranges on.
        name: of the model, for the title.
        progress: whether to show progress; by default only on a terminal.
    """
    base, best = found.base, found.measured
    times = (base.seconds, best.seconds) if base.seconds is not None and best.seconds is not None else None
    points = [ParetoPoint(name="float", cost=base.bytes / 1e3, quality=base.metric)]
    points += [
        ParetoPoint(
            name=trial.name,
            cost=trial.measured.bytes / 1e3,
            quality=trial.measured.metric,
            chosen=trial.name == found.best.name,
        )
        for trial in found.trials
        if trial.measured is not None
    ]
    return collect(
        found.model,
        data,
        chosen_because=_because(found),
        name=name,
        accuracy=(base.metric, best.metric),
        size=(base.bytes, best.bytes),
        size_note="of the parameters",
        latency=times,
        pareto=points,
        pareto_axes=("kB of parameters", "metric"),
        notes=(*found.verdict.splitlines(), f"The search ended because {found.stopped}."),
        configs=(("recipe.yaml", found.yaml),),
        progress=progress,
    )


def _because(found: Compressed) -> str:
    """Why this trial is the best, although another may be smaller and more accurate."""
    if not found.met:
        return "it comes closest to the goals."
    missed = {
        goal: None
        for trial in found.trials
        if trial.measured is not None
        for goal in found.goals.shortfalls(found.base, trial.measured)
    }
    goals = " and ".join(f"the {goal}" for goal in missed)
    return f"it meets every goal; others miss {goals}." if goals else "it meets every goal."
