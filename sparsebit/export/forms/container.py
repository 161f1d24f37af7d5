"""Which ONNX type stores the codes of a tensor, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsebit.export.translate.marker import Marked
from sparsebit.runtime.packages import require

_FLOAT8 = {"fp8_e4m3": "FLOAT8E4M3FN", "fp8_e5m2": "FLOAT8E5M2"}
_RANGE = {
    "INT2": (-2, 1),
    "UINT2": (0, 3),
    "INT4": (-8, 7),
    "UINT4": (0, 15),
    "INT8": (-128, 127),
    "UINT8": (0, 255),
    "INT16": (-32768, 32767),
    "UINT16": (0, 65535),
}
_OPSET = {"INT2": 25, "UINT2": 25, "INT4": 21, "UINT4": 21, "INT16": 21, "UINT16": 21, "FLOAT8E4M3FN": 19}
_OPSET["FLOAT8E5M2"] = 19
BLOCK_OPSET = 21
PLAIN_OPSET = 13


@dataclass(frozen=True)
class Container:
    """A type, how codes are stored in it, and the part of its range that is used (None: all)."""

    kind: str
    shift: int = 0
    clip: tuple[int, int] | None = None
    unpacked: bool = False  # 8-bit floats that no kernel of the target reads: cast in place

    @property
    def dtype(self) -> Any:
        """The type in ``onnx_ir``."""
        return require("onnx_ir").DataType[self.kind]

    @property
    def is_float(self) -> bool:
        """Whether the codes are 8-bit floats."""
        return self.kind not in _RANGE

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and largest code of the type."""
        return _RANGE[self.kind]


def container_of(tensor: Marked, *, unsigned_activations: bool, opset: int) -> Container:
    """The smallest ONNX type that fits. Widths without an ONNX type are stored in 8 bits, clipped to their range.

    Four-bit *activations* are stored in 8 bits too: no runtime computes on 4 bits, and integer kernels read 8 bits.
    With ``unsigned_activations`` the codes are stored as CPU kernels need them, which changes no number: signed 8-bit
    activations become unsigned by adding 128 to code and zero point.
    """
    code = tensor.grid.code
    if not code.is_integer:
        return Container(_FLOAT8[code.kind], unpacked=unsigned_activations)
    signed = code.low < 0
    weight = tensor.side == "W"
    if tensor.bits > 8:
        kind = "INT16" if signed else "UINT16"
    elif weight and tensor.bits == 4:
        kind = "INT4" if signed else "UINT4"
    elif weight and tensor.bits == 2 and opset >= _OPSET["INT2"]:
        kind = "INT2" if signed else "UINT2"
    else:
        kind = "INT8" if signed else "UINT8"
    shift = 0
    if kind == "INT8" and unsigned_activations and not weight:
        kind, shift = "UINT8", 128
    used = (code.low + shift, code.high + shift)
    return Container(kind, shift, None if used == _RANGE[kind] or weight else used)


def needed_opset(tensor: Marked) -> int:
    """The lowest opset in which this tensor can be written."""
    kind = container_of(tensor, unsigned_activations=False, opset=0).kind
    blocked = tensor.grid.layout.kind == "group" or tensor.grid.layout.groups > 1
    return max(
        PLAIN_OPSET, _OPSET.get(kind, PLAIN_OPSET), BLOCK_OPSET if blocked and not tensor.per_tensor else 0
    )
