"""OpenVINO's CPU plugin: integer inputs of operators with weights, and around operators that join tensors."""

from __future__ import annotations

from sparsebit.targets.onnxruntime import CONVOLUTIONS, PRODUCTS, TRANSPOSED
from sparsebit.targets.schemes import PER_TENSOR_OR_CHANNEL, SCHEMES_OF, UP_TO_8_BITS
from sparsebit.targets.target import Accepts, OpRule, Row, Target

# Measured: openvino 2026.4.1 cannot open a file in which other tensors of three dimensions have a scale per channel.
_CHANNELS_OF_3 = {3: (1,)}
_FUSED = ("relu", "relu6", "clamp", "hardtanh", "prelu", "leaky_relu", "sigmoid", "silu", "hardswish")

OPENVINO = Target(
    name="openvino",
    rules={
        **{
            op: OpRule(
                weight=True,
                output=op in CONVOLUTIONS + TRANSPOSED,
                channel_axes={3: ()} if op in PRODUCTS else _CHANNELS_OF_3,
                because="runs on integers when its input and weight are, and passes integers on to additions",
            )
            for op in (*CONVOLUTIONS, *TRANSPOSED, *PRODUCTS)
        },
        "embedding": OpRule(inputs=False, weight=True, because="int8 rows are gathered, then dequantized"),
        "matmul": OpRule(channel_axes=_CHANNELS_OF_3, because="both inputs on integers"),
        **{
            op: OpRule(
                output=True,
                when="joins",
                channel_axes=_CHANNELS_OF_3,
                because="keeps integers between its neighbours",
            )
            for op in ("add", "mul", "cat", "avg_pool2d", "adaptive_avg_pool2d", "interpolate")
        },
    },
    fused={**{op: frozenset(_FUSED) for op in CONVOLUTIONS}, "add": frozenset({"relu"})},
    source="the low-precision transformations described in OpenVINO's documentation, 2026.4",
    accepts={
        # Measured: a one-operator model against the unoptimized graph, openvino 2026.4.1.
        "W": Accepts(
            rows=(Row(bits=UP_TO_8_BITS, schemes=SCHEMES_OF["W"]),),
            dtype="openvino runs integers on a CPU; fp8 weights are turned back into float",
            bits="openvino weights have at most 8 bits; wider ones are turned back into float",
        ),
        "A": Accepts(
            rows=(Row(bits=UP_TO_8_BITS, schemes=PER_TENSOR_OR_CHANNEL),),
            dtype="openvino activations are integers on a CPU; fp8 runs in float",
            scheme="openvino activations have fixed scales; those of tokens are computed as the model runs",
            # Measured: a 16-bit QuantizeLinear does not saturate, so results are wrong outside its range.
            bits="openvino activations have at most 8 bits; 16-bit ones are not clipped to their range",
        ),
    },
    preset="int8_openvino",
    runtime="openvino",
)
