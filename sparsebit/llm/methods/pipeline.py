"""The steps of a config as objects: preparations, the solver, and tuners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparsebit.config.engine.steps import Step
from sparsebit.llm.methods.preparation import PREPARATIONS, Preparation
from sparsebit.llm.methods.solver import SOLVERS, Solver
from sparsebit.llm.methods.tuner import TUNERS, Tuner


class Pipeline(NamedTuple):
    """One solver, and the steps before and after it."""

    solver: Solver
    preparations: tuple[Preparation, ...] = ()
    tuners: tuple[Tuner, ...] = ()
    names_with_data: tuple[str, ...] = ()  # the steps that need calibration data

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Pipeline:
        """The pipeline that a checked list of steps describes."""
        (solving,) = (step for step in steps if step.name in SOLVERS)
        solver = SOLVERS[solving.name](**dict(solving.options))
        tuners = tuple(TUNERS[step.name](**dict(step.options)) for step in steps if step.name in TUNERS)
        before = tuple(
            PREPARATIONS[step.name](**dict(step.options)) for step in steps if step.name in PREPARATIONS
        )
        needing = [step.name for step in steps if step is not solving or solver.needs_data]
        return cls(solver, before, tuners, tuple(needing))

    @property
    def follows(self) -> bool:
        """Whether any step uses the hidden states of the float model."""
        return bool(self.solver.follow or any(tuner.follow for tuner in self.tuners))
