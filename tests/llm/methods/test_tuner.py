"""What every method that tunes a solved block has in common."""

from __future__ import annotations

import dataclasses

import pytest

from sparsebit.config.llm import METHOD_RULES
from sparsebit.llm.methods import METHODS, Tuner


@pytest.mark.parametrize("name", [name for name, rule in METHOD_RULES.items() if rule.moment == "after"])
def test_a_tuner_is_a_frozen_set_of_options(name: str) -> None:
    tuner = METHODS[name]()
    assert isinstance(tuner, Tuner) and 0 <= tuner.follow <= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        tuner.follow = 2.0
