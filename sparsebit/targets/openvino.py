"""OpenVINO's CPU plugin: integers on the inputs of what has weights, and around what joins them."""

from __future__ import annotations

from sparsebit.targets.onnxruntime import ONNXRUNTIME
from sparsebit.targets.target import OpRule, Target
from sparsebit.targets.weighted import WEIGHTED

_SOURCE = "the low-precision transformations described in OpenVINO's documentation, 2026.4"

OPENVINO = Target(
    name="openvino",
    rules={
        **{
            op: OpRule(
                weight=True,
                output=op.startswith("conv"),
                because="runs on integers when its input and weight are, and hands integers on to additions",
                source=_SOURCE,
            )
            for op in WEIGHTED
        },
        "matmul": OpRule(because="both inputs on integers", source=_SOURCE),
        **{
            op: OpRule(output=True, when="joins", because="keeps the integer path whole", source=_SOURCE)
            for op in ("add", "mul", "cat", "avg_pool2d", "adaptive_avg_pool2d", "interpolate")
        },
    },
    moves=ONNXRUNTIME.moves,
    fused={
        op: frozenset(
            {"relu", "relu6", "clamp", "hardtanh", "prelu", "leaky_relu", "sigmoid", "silu", "hardswish"}
        )
        for op in ("conv1d", "conv2d", "conv3d")
    }
    | {"add": frozenset({"relu"})},
)
