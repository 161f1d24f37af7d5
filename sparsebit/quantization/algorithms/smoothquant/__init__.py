"""SmoothQuant."""

from sparsebit.quantization.algorithms.smoothquant.apply import SmoothQuant, find_norms

__all__ = ["SmoothQuant", "find_norms"]
