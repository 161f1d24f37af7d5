"""The recovery steps of one model: those of its config, run before and after the ranges are taken."""

from __future__ import annotations

from collections.abc import Mapping

from sparsebit.config import QConfig
from sparsebit.quantization.algorithms import AdaRoundLayers, Algorithm, Job, make_algorithms
from sparsebit.quantization.algorithms.reconstruction import Reconstruction
from sparsebit.quantization.quantizers import AdaRound, Quantizer


class Recovery:
    """The algorithms that ``SCHEDULE.RECOVERY`` names, and AdaRound where a weight's quantizer asks for it.

    They are made with the model, so that a wrong option is found before any work.
    """

    def __init__(self, config: QConfig, quantizers: Mapping[str, Quantizer]) -> None:
        steps = config.SCHEDULE.RECOVERY
        self.before: list[Algorithm] = make_algorithms(steps, "before")
        self.after: list[Algorithm] = make_algorithms(steps, "after")
        rounding = any(isinstance(quantizer, AdaRound) for quantizer in quantizers.values())
        if rounding and not any(isinstance(step, Reconstruction) for step in self.after):
            self.after.insert(0, AdaRoundLayers())  # the others then see what was decided

    def run_before(self, job: Job) -> None:
        """Change weights before their ranges are taken."""
        for algorithm in self.before:
            algorithm.apply(job)

    def run_after(self, job: Job) -> None:
        """Win accuracy back with the ranges in place."""
        for algorithm in self.after:
            algorithm.apply(job)
