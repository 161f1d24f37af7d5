"""The steps of a config as objects: preparations, the solver, and tuners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsebit.config.engine.steps import Step
from sparsebit.config.llm.methods import METHOD_RULES, Moment
from sparsebit.llm.methods.preparation import Preparation
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import Solver
from sparsebit.llm.methods.tuner import Tuner


class Pipeline(NamedTuple):
    """One solver, and the steps before and after it."""

    solver: Solver
    preparations: tuple[Preparation, ...] = ()
    tuners: tuple[Tuner, ...] = ()
    names_with_data: tuple[str, ...] = ()  # the steps that need calibration data
    names_before: tuple[str, ...] = ()  # the preparations

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Pipeline:
        """The pipeline that a checked list of steps describes."""
        made: dict[Moment, list[Any]] = {"before": [], "solve": [], "after": []}
        needing = []
        for step in steps:
            moment, method = METHOD_RULES[step.name].moment, METHODS.make(step.name, **step.options)
            made[moment].append(method)
            if moment != "solve" or method.needs_data:
                needing.append(step.name)
        (solver,) = made["solve"]
        before = tuple(step.name for step in steps if METHOD_RULES[step.name].moment == "before")
        return cls(solver, tuple(made["before"]), tuple(made["after"]), tuple(needing), before)

    @property
    def follows(self) -> bool:
        """Whether any step uses the hidden states of the float model."""
        return bool(self.solver.follow or any(tuner.follow for tuner in self.tuners))
