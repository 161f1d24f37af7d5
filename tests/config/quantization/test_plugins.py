"""Names of quantizers and observers: spelling, where each goes, and names registered from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparsebit.config.quantization.plugins import (
    OBSERVER_RULES,
    QUANTIZER_RULES,
    RULES,
    Kind,
    NameRule,
    names_for,
    register_name,
)
from sparsebit.config.quantization.qconfig import load_qconfig
from sparsebit.errors import ConfigError, RegistryError
from tests.config.strategies import activations, plain_config, weights


@pytest.fixture
def clean() -> Iterator[None]:
    before = {kind: dict(registry) for kind, registry in RULES.items()}
    yield
    for kind, registry in RULES.items():
        for name in set(registry) - set(before[kind]):
            registry.remove(name)
        for name, rule in before[kind].items():
            registry.register(name, replace=True)(rule)


def test_what_there_is() -> None:
    assert list(QUANTIZER_RULES) == ["adaround", "dorefa", "lsq", "lsq+", "pact", "uniform"]
    assert list(OBSERVER_RULES) == ["aciq", "kl_histogram", "minmax", "moving_average", "mse", "percentile"]
    assert names_for("quantizer", "A") == ["dorefa", "lsq", "lsq+", "pact", "uniform"]
    assert "moving_average" not in names_for("observer", "W")


@pytest.mark.parametrize("kind", ["quantizer", "observer"])
def test_every_alias_leads_to_a_name(kind: Kind) -> None:
    for alias, name in RULES[kind].aliases.items():
        assert alias not in list(RULES[kind])
        for spelling in (alias, alias.upper(), alias.replace("_", "-"), f" {alias} "):
            assert RULES[kind].canonical(spelling) == name
            assert name in RULES[kind]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [("LSQ", "lsq"), ("LSQ_plus", "lsq+"), ("LSQ+", "lsq+"), ("DoReFa", "dorefa"), ("PACT", "pact")],
)
def test_spellings_of_old_documents(spelling: str, name: str) -> None:
    assert QUANTIZER_RULES.canonical(spelling) == name
    side = activations(QUANTIZER={"TYPE": spelling, "BIT": 8})
    assert name == load_qconfig(plain_config(A=side)).A.QUANTIZER.TYPE


def test_a_registered_name_can_be_used_where_its_rule_says(clean: None) -> None:
    rule = NameRule(schemes={"A": ("per-tensor-affine",)}, options=("window",), because="it sorts")
    register_name("observer", "Median", rule)
    config = load_qconfig(plain_config(A=activations(OBSERVER={"TYPE": "MEDIAN", "OPTIONS": {"window": 3}})))
    spec = config.spec_for("A", names=["fc"], op="linear")
    assert (spec.observer, spec.observer_options) == ("median", {"window": 3})
    with pytest.raises(ConfigError, match=r"W\.OBSERVER\.TYPE: expected an observer for weights .* it sorts"):
        load_qconfig(plain_config(W=weights(OBSERVER={"TYPE": "median"})))


def test_registering_again_keeps_the_rule_unless_there_is_a_new_one(clean: None) -> None:
    before = QUANTIZER_RULES["pact"]
    register_name("quantizer", "PACT")
    assert QUANTIZER_RULES["pact"] is before
    register_name("quantizer", "pact", NameRule())
    assert names_for("quantizer", "W") == ["adaround", "dorefa", "lsq", "lsq+", "pact", "uniform"]
    register_name("quantizer", "mine")
    assert "mine" in names_for("quantizer", "W")


def test_an_alias_cannot_be_registered() -> None:
    with pytest.raises(RegistryError) as caught:
        register_name("observer", "EMA")
    assert str(caught.value) == (
        "'EMA' is another spelling of observer 'moving_average'\n  next: choose another name"
    )
