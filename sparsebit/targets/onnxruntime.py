"""ONNX Runtime's CPU provider: what it fuses to integer kernels, measured on 1.31."""

from __future__ import annotations

from sparsebit.targets.moving import MOVES
from sparsebit.targets.target import OpRule, Target

_SOURCE = "optimized graphs and node timings of onnxruntime 1.31 on an AVX512-VNNI CPU"
_CLIPS = frozenset({"relu", "relu6", "clamp", "hardtanh"})


def _rule(because: str, **fields: object) -> OpRule:
    return OpRule(because=because, source=_SOURCE, **fields)  # type: ignore[arg-type]


_CONVOLUTION = _rule(
    "QLinearConv needs integers on both sides; without them behind it runs in float and unpacks its weights each time",
    output=True,
    weight=True,
)
_JOINED = {
    **{
        op: _rule("QLinearAveragePool, between integers", output=True, when="joins")
        for op in ("avg_pool2d", "adaptive_avg_pool2d")
    },
    "add": _rule(
        "QLinearAdd; a float add would leave the convolutions before it in float", output=True, when="joins"
    ),
    "mul": _rule("QLinearMul, as in gates", output=True, when="joins"),
    "cat": _rule("QLinearConcat takes any scales", output=True, when="joins"),
    "sigmoid": _rule("QLinearSigmoid", output=True, when="joins"),
    "silu": _rule("QLinearSigmoid and QLinearMul", output=True, when="joins"),
    "leaky_relu": _rule("QLinearLeakyRelu", output=True, when="joins"),
    "interpolate": _rule("Resize on integers", output=True, when="joins"),
}

ONNXRUNTIME = Target(
    name="onnxruntime",
    rules={
        **{op: _CONVOLUTION for op in ("conv1d", "conv2d", "conv3d")},
        **{
            op: _rule(
                "QGemm or MatMulIntegerToFloat with an int32 bias; integers behind it buy nothing",
                weight=True,
            )
            for op in ("linear", "addmm")
        },
        **_JOINED,
        "matmul": _rule("MatMulIntegerToFloat, no faster than float in attention", when="if_asked"),
    },
    moves=MOVES,
    fused={**{op: _CLIPS for op in ("conv1d", "conv2d", "conv3d")}, "add": frozenset({"relu"})},
    remarks=(
        "transposed convolutions, softmax, layer norm, gelu, hardswish, tanh and means over axes stay in float",
        "an embedding would be unpacked whole on every run, so it stays in float",
    ),
)
