"""Algorithms that win accuracy back, each switched on by a line in ``SCHEDULE.RECOVERY``."""

from sparsebit.quantization.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    Job,
    Stage,
    make_algorithms,
    register_algorithm,
)
from sparsebit.quantization.algorithms.reconstruction import AdaRoundLayers, Brecq

__all__ = [
    "ALGORITHMS",
    "AdaRoundLayers",
    "Algorithm",
    "Brecq",
    "Job",
    "Stage",
    "make_algorithms",
    "register_algorithm",
]
