"""The tables of runtimes speak of operators that exist."""

from __future__ import annotations

import pytest

from sparsebit.graph.ops import OPS
from sparsebit.targets import TARGETS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_operator_is_in_the_operator_table(name: str) -> None:
    target = TARGETS[name]
    mentioned = {
        *target.rules,
        *target.fused,
        *(op for ops in target.fused.values() for op in ops),
    }
    assert mentioned <= set(OPS), sorted(mentioned - set(OPS))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_rule_gives_its_reason_and_source(name: str) -> None:
    for op, rule in TARGETS[name].rules.items():
        assert rule.because and TARGETS[name].source, op
        assert rule.inputs or rule.weight or rule.output, f"{op}: a rule that asks for nothing"
        spec = OPS[op]
        assert not rule.weight or spec.weight or op == "addmm", f"{op} has no weight"


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_operator_that_moves_numbers_has_no_rule(name: str) -> None:
    assert not [op for op in TARGETS[name].rules if OPS[op].moves is True]


# What the task of placement names: every target has to say something about each of them.
NAMED = {
    "residual adds": ("add",),
    "concat": ("cat",),
    "pooling": ("avg_pool2d", "adaptive_avg_pool2d", "max_pool2d"),
    "activations": ("relu", "gelu", "silu", "sigmoid", "hardswish"),
    "attention": ("matmul", "softmax", "scaled_dot_product_attention"),
    "norms": ("layer_norm", "batch_norm"),
    "gates": ("mul",),
    "embeddings": ("embedding",),
}


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.parametrize("kind", sorted(NAMED))
def test_what_was_asked_for_is_decided(name: str, kind: str) -> None:
    """By a rule, by only moving numbers, inside another operator, or by staying in float; the last has no row."""
    target = TARGETS[name]
    fused = {activation for ops in target.fused.values() for activation in ops}
    floats = {
        "virtual": {"cat", "mul"},  # as in the 2022 toolkit
        "onnxruntime": {"gelu", "softmax", "scaled_dot_product_attention", "layer_norm"} | {"batch_norm"},
        "openvino": {
            "gelu",
            "softmax",
            "scaled_dot_product_attention",
            "layer_norm",
            "batch_norm",
        },
        "tensorrt": {"hardswish", "softmax", "scaled_dot_product_attention", "layer_norm", "batch_norm"}
        | {"embedding", "mul"},
    }[name]
    for op in NAMED[kind]:
        decided = op in target.rules or OPS[op].moves is True or op in fused | target.split
        assert decided != (op in floats), op


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_only_what_has_channels_asks_for_its_weight(name: str) -> None:
    for op, rule in TARGETS[name].rules.items():
        assert rule.weight == (OPS[op].family in ("conv", "linear", "embedding") or op == "addmm"), op
        assert rule.inside <= set(TARGETS[name].rules)


def test_an_operator_without_a_rule_stays_in_float() -> None:
    assert TARGETS["onnxruntime"].rule("gelu") is None and TARGETS["onnxruntime"].rule(None) is None
    assert TARGETS["onnxruntime"].fuses("conv2d", "relu") and not TARGETS["onnxruntime"].fuses(
        "conv2d", "gelu"
    )
