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
        *target.moves,
        *target.fused,
        *(op for ops in target.fused.values() for op in ops),
    }
    assert mentioned <= set(OPS), sorted(mentioned - set(OPS))


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_rule_gives_its_reason_and_source(name: str) -> None:
    for op, rule in TARGETS[name].rules.items():
        assert rule.because and rule.source, op
        assert rule.inputs or rule.weight or rule.output, f"{op}: a rule that asks for nothing"
        spec = OPS[op]
        assert not rule.weight or spec.weight or op == "addmm", f"{op} has no weight"


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_operator_that_moves_numbers_has_no_rule(name: str) -> None:
    target = TARGETS[name]
    assert not target.moves & set(target.rules)


def test_an_operator_without_a_rule_stays_in_float() -> None:
    assert TARGETS["onnxruntime"].rule("gelu") is None and TARGETS["onnxruntime"].rule(None) is None
    assert TARGETS["onnxruntime"].fuses("conv2d", "relu") and not TARGETS["onnxruntime"].fuses(
        "conv2d", "gelu"
    )
