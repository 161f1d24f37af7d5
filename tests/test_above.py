"""Verbs that reach upwards."""

from __future__ import annotations

import pytest

from sparsebit.above import call_above


def test_it_calls_what_is_named_with_what_is_given() -> None:
    assert call_above("sparsebit.config.load_qconfig", "w4a8", ["W.QUANTIZER.BIT=3"]).W.QUANTIZER.BIT == 3


def test_a_place_that_is_not_there_is_a_mistake_of_ours() -> None:
    with pytest.raises(AttributeError):
        call_above("sparsebit.config.nothing")
