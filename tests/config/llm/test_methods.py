"""Every method that a config may name exists, at the moment the config says, with the options it declares."""

from __future__ import annotations

from sparsebit.config.llm.methods import METHOD, METHOD_RULES
from sparsebit.llm.methods import METHODS


def test_rules_and_methods_are_the_same_names() -> None:
    acts = {"before": "start", "solve": "solve", "after": "tune"}
    assert set(METHODS) == set(METHOD_RULES)
    for name, rule in METHOD_RULES.items():
        assert issubclass(METHODS[name], rule.options) and hasattr(METHODS[name], acts[rule.moment])  # type: ignore[arg-type]


def test_other_names() -> None:
    assert [step.name for step in METHOD.parse(["sparsegpt", "EfficientQAT"])] == ["gptq", "tune"]  # type: ignore[attr-defined]
