"""Names of criteria: every spelling, and one registered from outside."""

from __future__ import annotations

import pytest

from sparsebit.config.pruning.criteria import SPARSER_RULES, SparserRule
from sparsebit.config.pruning.sconfig import load_sconfig
from sparsebit.errors import RegistryError
from tests.config.pruning.test_sconfig import complaint, config


@pytest.mark.parametrize("name", sorted(SPARSER_RULES))
def test_every_criterion_can_be_named(name: str) -> None:
    assert name == load_sconfig(config(STRATEGY=name.upper())).SPARSER.STRATEGY


@pytest.mark.parametrize("alias", sorted(SPARSER_RULES.aliases))
def test_another_spelling_becomes_the_name_of_its_criterion(alias: str) -> None:
    assert load_sconfig(config(STRATEGY=alias)).SPARSER.STRATEGY in list(SPARSER_RULES)


def test_a_name_of_ones_own() -> None:
    SPARSER_RULES.add("test_age", SparserRule(types=("structured",), options=("years",)))
    try:
        assert load_sconfig(config(STRATEGY="test_age", OPTIONS={"years": 3})).SPARSER.OPTIONS["years"] == 3
        assert "TYPE unstructured" in complaint(config(TYPE="unstructured", STRATEGY="test_age"))
    finally:
        SPARSER_RULES.remove("test_age")
    with pytest.raises(RegistryError, match="another spelling of pruning criterion 'l1norm'"):
        SPARSER_RULES.add("L1-norm")
