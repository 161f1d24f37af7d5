"""Cross-layer equalization."""

from sparsebit.quantization.algorithms.equalization.apply import Equalization, find_pairs

__all__ = ["Equalization", "find_pairs"]
