"""ONNX Runtime's CPU provider: what it fuses to integer kernels, measured on 1.31."""

from __future__ import annotations

from sparsebit.targets.schemes import PER_TENSOR, PER_TENSOR_OR_CHANNEL, UP_TO_8_BITS
from sparsebit.targets.target import Accepts, OpRule, Row, Target

_CLIPS = frozenset({"relu", "relu6", "clamp", "hardtanh"})
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
PRODUCTS = ("linear", "addmm")


# Measured on MobileNetV3, whose first layers (16 channels, 9 to 27 products) take twice as long on integers.
_CONVOLUTION = OpRule(because="QLinearConv: integers in and out", output=True, weight=True, narrow=(32, 31))
_JOINED = {
    **{
        op: OpRule(because="QLinearAveragePool, between integers", output=True, when="joins")
        for op in ("avg_pool2d", "adaptive_avg_pool2d")
    },
    "add": OpRule(
        because="QLinearAdd; a float add would leave the convolutions before it in float",
        output=True,
        when="joins",
    ),
    "mul": OpRule(because="QLinearMul, as in gates", output=True, when="joins"),
    "cat": OpRule(because="QLinearConcat takes any scales", output=True, when="joins"),
    "sigmoid": OpRule(because="QLinearSigmoid", output=True, when="joins"),
    "hardsigmoid": OpRule(because="QLinearAdd, clipped by the range of its grid", output=True, when="joins"),
    "leaky_relu": OpRule(because="QLinearLeakyRelu", output=True, when="joins"),
    "interpolate": OpRule(because="Resize on integers", output=True, when="joins"),
}
_MATMULS = frozenset(
    {"QLinearMatMul", "MatMulIntegerToFloat", "QGemm", "DynamicQuantizeMatMul", "MatMulNBits"}
)

ONNXRUNTIME = Target(
    name="onnxruntime",
    rules={
        **{op: _CONVOLUTION for op in CONVOLUTIONS},
        **{
            op: OpRule(because="QGemm or MatMulIntegerToFloat; its result may stay in float", weight=True)
            for op in PRODUCTS
        },
        **_JOINED,
        "embedding": OpRule(because="int8 rows are gathered, then dequantized", inputs=False, weight=True),
        "matmul": OpRule(because="MatMulIntegerToFloat, no faster than float in attention", when="if_asked"),
    },
    fused={**{op: _CLIPS | {"hardsigmoid"} for op in CONVOLUTIONS}, "add": frozenset({"relu"})},
    split=frozenset({"hardswish", "silu"}),
    source="optimized graphs and node timings of onnxruntime 1.31 on an AVX512-VNNI CPU",
    accepts={
        # Measured: a one-operator model against the unoptimized graph, onnxruntime 1.31.1.
        "W": Accepts(
            rows=(
                Row(bits=UP_TO_8_BITS, schemes=PER_TENSOR_OR_CHANNEL),
                # These sizes become MatMulNBits; 4, 8, 24, 48, 96, 384, 512 and 1024 do not.
                Row(
                    bits=UP_TO_8_BITS,
                    schemes=("per-group-symmetric", "per-group-affine"),
                    group_sizes=(16, 32, 64, 128, 256),
                ),
            ),
            dtype="onnxruntime runs integers; fp8 weights are turned back into float on each run",
            bits="onnxruntime weights have at most 8 bits; wider ones are turned back into float on each run",
            group_size="onnxruntime reads groups of these sizes only; others are turned back into float",
        ),
        "A": Accepts(
            rows=(Row(bits=UP_TO_8_BITS, schemes=PER_TENSOR),),
            # Measured: fp8 beside int8 weights does not load, per-channel fails when QLinearConv runs.
            dtype="onnxruntime activations are integers; a graph with fp8 beside int8 does not load",
            scheme="onnxruntime activations have one scale per tensor; its convolutions fail on more",
            bits="onnxruntime activations have at most 8 bits; wider ones run in float",
        ),
    },
    runtime="onnxruntime",
    kernels={
        "Conv": frozenset({"QLinearConv", "ConvInteger"}),
        "Gemm": _MATMULS,
        "MatMul": _MATMULS | {"MatMulInteger"},
        "Add": frozenset({"QLinearAdd"}),
        "Mul": frozenset({"QLinearMul"}),
        "Concat": frozenset({"QLinearConcat", "Concat"}),
        "AveragePool": frozenset({"QLinearAveragePool"}),
        "GlobalAveragePool": frozenset({"QLinearGlobalAveragePool"}),
        "Sigmoid": frozenset({"QLinearSigmoid"}),
        "LeakyRelu": frozenset({"QLinearLeakyRelu"}),
        "Resize": frozenset({"Resize"}),
        "ConvTranspose": frozenset(),
    },
    # Transposed convolutions, softmax, layer norm, gelu, mish, tanh and means over axes stay in float.
)
