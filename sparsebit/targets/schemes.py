"""Number formats, and the ways a tensor can share its scales: the vocabulary of targets and configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Side = Literal["W", "A"]
NumberFormat = Literal["int", "fp8_e4m3", "fp8_e5m2"]
Scheme = Literal[
    "per-tensor-symmetric",
    "per-tensor-affine",
    "per-channel-symmetric",
    "per-channel-affine",
    "per-group-symmetric",
    "per-group-affine",
    "per-token-symmetric",
    "per-token-affine",
]

SIDES: tuple[Side, ...] = get_args(Side)
SIDE_WORD: Mapping[Side, str] = {"W": "weights", "A": "activations"}
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

# Groups run along the input channels of a weight; a token is a row of an activation.
SCHEMES_OF: Mapping[Side, tuple[Scheme, ...]] = {
    "W": tuple(scheme for scheme in SCHEMES if "token" not in scheme),
    "A": tuple(scheme for scheme in SCHEMES if "group" not in scheme),
}
PER_TENSOR: tuple[Scheme, ...] = ("per-tensor-symmetric", "per-tensor-affine")
PER_TENSOR_OR_CHANNEL: tuple[Scheme, ...] = (*PER_TENSOR, "per-channel-symmetric", "per-channel-affine")
UP_TO_8_BITS = tuple(range(2, 9))
