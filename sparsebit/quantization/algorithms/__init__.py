"""Algorithms that recover accuracy, each enabled by a line in ``SCHEDULE.RECOVERY``."""

from sparsebit.quantization.algorithms.base import ALGORITHMS, Algorithm, Job, Stage, register_algorithm
from sparsebit.quantization.algorithms.bias_correction import BiasCorrection
from sparsebit.quantization.algorithms.equalization import Equalization
from sparsebit.quantization.algorithms.reconstruction import AdaRoundLayers, Brecq
from sparsebit.quantization.algorithms.smoothquant import SmoothQuant
from sparsebit.quantization.algorithms.weight_correction import WeightCorrection

__all__ = [
    "ALGORITHMS",
    "AdaRoundLayers",
    "Algorithm",
    "BiasCorrection",
    "Brecq",
    "Equalization",
    "Job",
    "SmoothQuant",
    "Stage",
    "WeightCorrection",
    "register_algorithm",
]
