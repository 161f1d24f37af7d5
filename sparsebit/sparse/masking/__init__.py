"""Pruned weights held at zero in training."""

from sparsebit.sparse.masking.holding import hold, hold_all, hold_zeros, release
from sparsebit.sparse.masking.mask_store import MaskStore
from sparsebit.sparse.masking.masked_graph import MaskedGraph

__all__ = ["MaskStore", "MaskedGraph", "hold", "hold_all", "hold_zeros", "release"]
