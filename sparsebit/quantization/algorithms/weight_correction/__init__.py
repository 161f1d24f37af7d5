"""Weight-norm correction."""

from sparsebit.quantization.algorithms.weight_correction.apply import WeightCorrection

__all__ = ["WeightCorrection"]
