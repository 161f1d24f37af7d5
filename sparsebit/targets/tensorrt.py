"""TensorRT's explicit quantization: symmetric grids, zero point 0, and a residual add that reads integers."""

from __future__ import annotations

from sparsebit.targets.onnxruntime import CONVOLUTIONS, PRODUCTS, TRANSPOSED
from sparsebit.targets.schemes import UP_TO_8_BITS
from sparsebit.targets.target import Accepts, OpRule, Row, Target

_WEIGHTED = (*CONVOLUTIONS, *TRANSPOSED, *PRODUCTS)
_FUSED = ("relu", "relu6", "clamp", "sigmoid", "tanh", "silu", "gelu", "leaky_relu")

TENSORRT = Target(
    name="tensorrt",
    rules={
        **{
            op: OpRule(weight=True, because="the inputs of operators with weights are quantized")
            for op in _WEIGHTED
        },
        "matmul": OpRule(because="both inputs of a batched product"),
        "add": OpRule(
            when="joins",
            inside=frozenset(_WEIGHTED),
            because="the skip branch is quantized, so that the add fuses into the convolution",
        ),
        **{
            op: OpRule(when="joins", because="runs on the grid of its input")
            for op in ("avg_pool2d", "adaptive_avg_pool2d", "cat")
        },
    },
    fused={**{op: frozenset(_FUSED) for op in _WEIGHTED}, "add": frozenset({"relu"})},
    source="TensorRT developer guide, explicit quantization: recommended Q/DQ placement",
    accepts={
        # From TensorRT's documentation and the source of its ONNX importer.
        "W": Accepts(
            rows=(
                Row(bits=UP_TO_8_BITS, schemes=("per-channel-symmetric",)),
                Row(bits=(2, 3, 4), schemes=("per-group-symmetric",)),
                Row(dtype="fp8_e4m3", schemes=("per-tensor-symmetric", "per-channel-symmetric")),
            ),
            dtype="tensorrt supports only one 8-bit float, e4m3",
            scheme="tensorrt weights are symmetric, one scale per channel or per group: it refuses zero points",
            bits="tensorrt weights are int8, or int4 in groups; fewer bits are stored in those",
        ),
        "A": Accepts(
            rows=(
                Row(schemes=("per-tensor-symmetric",)),
                Row(dtype="fp8_e4m3", schemes=("per-tensor-symmetric",)),
            ),
            dtype="tensorrt supports only one 8-bit float, e4m3",
            scheme="tensorrt activations are symmetric with one scale per tensor: it refuses zero points",
            bits="tensorrt activations have exactly 8 bits: it cannot clip integers to fewer",
        ),
    },
    preset="int8_tensorrt",
    forms="tensorrt",
)
