"""Rounding that minimizes the error of a layer or block: AdaRound, BRECQ, QDrop."""

from sparsebit.quantization.algorithms.reconstruction.apply import AdaRoundLayers, Brecq, Reconstruction
from sparsebit.quantization.algorithms.reconstruction.blocks import Block, find_blocks

__all__ = ["AdaRoundLayers", "Block", "Brecq", "Reconstruction", "find_blocks"]
