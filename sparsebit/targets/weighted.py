"""Operators that multiply their input by a weight with channels."""

from __future__ import annotations

WEIGHTED = (
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("linear", "addmm"),
)
