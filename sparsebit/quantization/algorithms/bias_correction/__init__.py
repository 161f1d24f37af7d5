"""Bias correction."""

from sparsebit.quantization.algorithms.bias_correction.apply import BiasCorrection

__all__ = ["BiasCorrection"]
