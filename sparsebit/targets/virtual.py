"""The research target: the inputs of every computing operator are quantized, independent of any runtime."""

from __future__ import annotations

from sparsebit.targets.onnxruntime import CONVOLUTIONS, ONNXRUNTIME, PRODUCTS, TRANSPOSED
from sparsebit.targets.target import OpRule, Target

_WEIGHTED = (*CONVOLUTIONS, *TRANSPOSED, *PRODUCTS)
_ACTIVATIONS = (
    *("relu", "relu6", "clamp", "hardtanh", "sigmoid", "leaky_relu", "mish", "silu", "hardsigmoid"),
    *("hardswish", "prelu", "elu", "gelu", "tanh"),
)
_OTHERS = (
    *("matmul", "scaled_dot_product_attention", "softmax", "layer_norm", "group_norm", "mean"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate"),
)

VIRTUAL = Target(
    name="virtual",
    rules={
        **{op: OpRule(weight=True, because="multiplies its input by a weight") for op in _WEIGHTED},
        **{op: OpRule(because="computes on its input") for op in (*_OTHERS, *sorted(_ACTIVATIONS))},
        "add": OpRule(when="if_asked", because="A.QADD.ENABLE_QUANT is true"),
        "embedding": OpRule(inputs=False, weight=True, because="a table of weights"),
    },
    fused={
        **{op: frozenset({*_ACTIVATIONS, "batch_norm"}) for op in _WEIGHTED},
        "batch_norm": frozenset(_ACTIVATIONS),
        "add": frozenset({"relu", "relu6", "clamp"}),
    },
    source="the operators that the 2022 toolkit quantized by default",
    stored_bits=(2, 3, 4, 5, 6, 8),
    kernels=ONNXRUNTIME.kernels,
)
