"""Rounding chosen by how well a layer or block is rebuilt: AdaRound, BRECQ, QDrop."""

from sparsebit.quantization.algorithms.reconstruction.apply import AdaRoundLayers, Brecq, Reconstruction
from sparsebit.quantization.algorithms.reconstruction.blocks import Block, find_blocks

__all__ = ["AdaRoundLayers", "Block", "Brecq", "Reconstruction", "find_blocks"]
