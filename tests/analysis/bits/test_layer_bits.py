"""Other bits for some layers: rules that come after all others."""

from __future__ import annotations

from sparsebit.analysis import FLOAT, with_layer_bits
from sparsebit.config import load_qconfig


def test_the_new_rules_win_over_those_that_are_there() -> None:
    config = load_qconfig("w4a8", ["W.SPECIFIC={fc: [QUANTIZER.BIT, 8]}"])
    changed = with_layer_bits(config, weights={"fc": 2}, inputs={"conv": FLOAT})
    assert changed.spec_for("W", names=["fc"], op="linear").bits == 2
    assert not changed.spec_for("A", names=["conv"], op="conv2d").enabled
    assert changed.spec_for("A", names=["fc"], op="linear") == config.spec_for("A", names=["fc"], op="linear")


def test_no_bits_change_nothing() -> None:
    config = load_qconfig("w4a8")
    assert with_layer_bits(config) == config
