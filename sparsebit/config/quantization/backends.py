"""What each BACKEND runs, as data: which codes, with which schemes, on which side.

A combination is listed when the runtime computes the right result and has a reason to be fast at it; what only works by
going back to float (16-bit weights under ONNX Runtime, say) belongs to ``virtual``. Sources: "measured" is a
one-operator model run with onnxruntime 1.31.1 and openvino 2026.4.1 against the unoptimized graph; TensorRT is from
its documentation and the source of its ONNX importer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsebit.config.quantization.names import SCHEMES_OF
from sparsebit.config.quantization.tensor_spec import NumberFormat, Scheme, Side


@dataclass(frozen=True, kw_only=True)
class Row:
    """One set of codes and schemes that go together."""

    dtype: NumberFormat = "int"
    bits: tuple[int, ...] = (8,)
    schemes: tuple[Scheme, ...]
    group_sizes: tuple[int, ...] | None = None  # None: any


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """What a backend takes on one side, and the rules behind it."""

    rows: tuple[Row, ...]
    dtype: str = ""  # why other number formats are refused
    scheme: str = ""  # why other schemes are
    bits: str = ""
    group_size: str = ""


@dataclass(frozen=True, kw_only=True)
class BackendRules:
    """One backend: what it takes on each side. A side that is missing takes anything."""

    sides: Mapping[Side, Accepts] = field(default_factory=dict)


UP_TO_8 = tuple(range(2, 9))
_TENSOR: tuple[Scheme, ...] = ("per-tensor-symmetric", "per-tensor-affine")
_TENSOR_OR_CHANNEL: tuple[Scheme, ...] = (*_TENSOR, "per-channel-symmetric", "per-channel-affine")

BACKEND_RULES: Mapping[str, BackendRules] = {
    "virtual": BackendRules(),
    "onnxruntime": BackendRules(
        sides={
            "W": Accepts(
                rows=(
                    Row(bits=UP_TO_8, schemes=_TENSOR_OR_CHANNEL),
                    # Measured: these sizes become MatMulNBits; 4, 8, 24, 48, 96, 384, 512 and 1024 do not.
                    Row(
                        bits=UP_TO_8,
                        schemes=("per-group-symmetric", "per-group-affine"),
                        group_sizes=(16, 32, 64, 128, 256),
                    ),
                ),
                dtype="onnxruntime runs integer codes; fp8 weights are turned back into float on each run",
                bits="onnxruntime weights have at most 8 bits; wider ones are turned back into float on each run",
                group_size="onnxruntime reads groups of these sizes only; others are turned back into float",
            ),
            "A": Accepts(
                rows=(Row(bits=UP_TO_8, schemes=_TENSOR),),
                # Measured: fp8 beside int8 weights does not load, per-channel fails when QLinearConv runs.
                dtype="onnxruntime activations are integers; a graph with fp8 beside int8 does not load",
                scheme="onnxruntime activations have one scale per tensor; its convolutions fail on more",
                bits="onnxruntime activations have at most 8 bits; wider ones run in float",
            ),
        }
    ),
    "openvino": BackendRules(
        sides={
            "W": Accepts(
                rows=(Row(bits=UP_TO_8, schemes=SCHEMES_OF["W"]),),
                dtype="openvino runs integer codes on a CPU; fp8 weights are turned back into float",
                bits="openvino weights have at most 8 bits; wider ones are turned back into float",
            ),
            "A": Accepts(
                rows=(Row(bits=UP_TO_8, schemes=_TENSOR_OR_CHANNEL),),
                dtype="openvino activations are integers on a CPU; fp8 runs in float",
                scheme="openvino activations have fixed scales, which tokens do not",
                # Measured: a 16-bit QuantizeLinear does not saturate, so results are wrong outside its range.
                bits="openvino activations have at most 8 bits; 16-bit ones are not clipped to their range",
            ),
        }
    ),
    "tensorrt": BackendRules(
        sides={
            "W": Accepts(
                rows=(
                    Row(bits=UP_TO_8, schemes=("per-channel-symmetric",)),
                    Row(bits=(2, 3, 4), schemes=("per-group-symmetric",)),
                    Row(dtype="fp8_e4m3", schemes=("per-tensor-symmetric", "per-channel-symmetric")),
                ),
                dtype="tensorrt knows one 8-bit float, e4m3",
                scheme="tensorrt weights are symmetric, one scale per channel or per group: it refuses zero points",
                bits="tensorrt weights are int8, or int4 in groups; fewer bits are stored in those",
            ),
            "A": Accepts(
                rows=(
                    Row(schemes=("per-tensor-symmetric",)),
                    Row(dtype="fp8_e4m3", schemes=("per-tensor-symmetric",)),
                ),
                dtype="tensorrt knows one 8-bit float, e4m3",
                scheme="tensorrt activations are symmetric with one scale per tensor: it refuses zero points",
                bits="tensorrt activations have exactly 8 bits: it cannot clip integers to fewer",
            ),
        }
    ),
}
