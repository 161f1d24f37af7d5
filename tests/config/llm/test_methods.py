"""Every method that a config may name exists, at the moment the config says, with the options it declares."""

from __future__ import annotations

from sparsebit.config.llm.methods import METHOD, METHOD_RULES
from sparsebit.llm.methods import PREPARATIONS, SOLVERS, TUNERS


def test_rules_and_methods_are_the_same_names() -> None:
    by_moment = {"before": PREPARATIONS, "solve": SOLVERS, "after": TUNERS}
    for moment, registry in by_moment.items():
        named = {name for name, rule in METHOD_RULES.items() if rule.moment == moment}
        assert named == set(registry)
        for name in named:
            assert issubclass(registry[name], METHOD_RULES[name].options)  # type: ignore[arg-type]


def test_other_names() -> None:
    assert [step.name for step in METHOD.parse(["sparsegpt", "EfficientQAT"])] == ["gptq", "tune"]  # type: ignore[attr-defined]
