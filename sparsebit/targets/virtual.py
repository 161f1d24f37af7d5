"""The research target: every operator that computes gets its inputs quantized, whatever a runtime would do."""

from __future__ import annotations

from sparsebit.targets.moving import MOVES
from sparsebit.targets.target import OpRule, Target
from sparsebit.targets.weighted import WEIGHTED

_SOURCE = "the operators that the 2022 toolkit quantized by default"
_ACTIVATIONS = frozenset(
    {
        *(
            "relu",
            "relu6",
            "clamp",
            "hardtanh",
            "sigmoid",
            "leaky_relu",
            "mish",
            "silu",
            "hardsigmoid",
            "hardswish",
        ),
        *("prelu", "elu", "gelu", "tanh", "batch_norm"),
    }
)
_OTHERS = (
    *("matmul", "scaled_dot_product_attention", "softmax", "layer_norm", "group_norm", "mean"),
    *(
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
    ),
    "interpolate",
)

VIRTUAL = Target(
    name="virtual",
    rules={
        **{
            op: OpRule(weight=True, because="a weight meets its input here", source=_SOURCE)
            for op in WEIGHTED
        },
        **{
            op: OpRule(because="computes on its input", source=_SOURCE)
            for op in (*_OTHERS, *sorted(_ACTIVATIONS - {"batch_norm"}))
        },
        **{
            op: OpRule(when="if_asked", because="A.QADD.ENABLE_QUANT asks for it", source=_SOURCE)
            for op in ("add",)
        },
        "embedding": OpRule(inputs=False, weight=True, because="a table of weights", source=_SOURCE),
    },
    moves=MOVES,
    fused={
        **{op: _ACTIVATIONS for op in WEIGHTED},
        "batch_norm": _ACTIVATIONS - {"batch_norm"},
        "add": frozenset({"relu", "relu6", "clamp"}),
    },
)
