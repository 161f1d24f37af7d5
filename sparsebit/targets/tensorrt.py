"""TensorRT's explicit quantization: symmetric grids, zero point 0, and a residual add that reads integers."""

from __future__ import annotations

from sparsebit.targets.moving import MOVES
from sparsebit.targets.target import OpRule, Target
from sparsebit.targets.weighted import WEIGHTED

_SOURCE = "TensorRT developer guide, explicit quantization: recommended Q/DQ placement"

TENSORRT = Target(
    name="tensorrt",
    rules={
        **{
            op: OpRule(weight=True, because="quantize the inputs of what has weights", source=_SOURCE)
            for op in WEIGHTED
        },
        "matmul": OpRule(because="both inputs of a batched product", source=_SOURCE),
        "add": OpRule(
            when="joins",
            inside=frozenset(WEIGHTED),
            because="the skip branch is quantized, so that the add fuses into the convolution",
            source=_SOURCE,
        ),
        **{
            op: OpRule(when="joins", because="runs on the grid of its input", source=_SOURCE)
            for op in ("avg_pool2d", "adaptive_avg_pool2d", "cat")
        },
    },
    moves=MOVES,
    fused={
        **{
            op: frozenset({"relu", "relu6", "clamp", "sigmoid", "tanh", "silu", "gelu", "leaky_relu"})
            for op in WEIGHTED
        },
        "add": frozenset({"relu"}),
    },
    remarks=("every grid is symmetric with zero point 0; weights per output channel",),
)
