"""Operators that give back some of the numbers they were given, unchanged."""

from __future__ import annotations

# Reshaping, slicing and selecting; a maximum over a window selects too. Padding with zero and nearest-neighbour
# resizing stay on the grid because zero is always a point of it.
MOVES = frozenset(
    {
        *(
            "reshape",
            "flatten",
            "unflatten",
            "permute",
            "transpose",
            "squeeze",
            "unsqueeze",
            "expand",
            "repeat",
        ),
        *("getitem", "select", "narrow", "split", "chunk", "unbind", "roll", "flip", "movedim", "contiguous"),
        *("clone", "detach", "identity", "dropout", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d"),
        *("adaptive_max_pool3d", "index_select", "gather", "tile"),
    }
)
