"""Operators that give back some of the numbers they were given, unchanged."""

from __future__ import annotations

from sparsebit.graph.ops import OpCall

# Reshaping, slicing and selecting; a maximum over a window selects too.
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
        *("clone", "detach", "identity", "dropout", "drop_path", "pixel_shuffle", "pixel_unshuffle"),
        *("channel_shuffle", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d", "index_select", "gather", "tile", "expand_as"),
        *("reshape_as", "matrix_transpose", "repeat_interleave"),
    }
)


def only_moves(call: OpCall, moves: frozenset[str] = MOVES) -> bool:
    """Whether a call hands on numbers of its first input, and perhaps zeros.

    Padding with zero and nearest-neighbour resizing do, because zero is always a point of the grid; with other
    settings these two compute.
    """
    if call.spec.name == "interpolate":
        return str(call.arguments.get("mode", "nearest")).startswith("nearest")
    if call.spec.name == "pad":
        return call.arguments.get("mode", "constant") != "constant" or not call.arguments.get("value")
    return call.spec.name in moves
