"""What every method that tunes a solved block has in common."""

from __future__ import annotations

import dataclasses

import pytest

import sparsebit.llm.methods.pipeline  # noqa: F401 - registers them
from sparsebit.llm.methods.tuner import TUNERS, Tuner


@pytest.mark.parametrize("name", sorted(TUNERS))
def test_a_tuner_is_a_frozen_set_of_options(name: str) -> None:
    tuner = TUNERS[name]()
    assert isinstance(tuner, Tuner) and 0 <= tuner.follow <= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        tuner.follow = 2.0
