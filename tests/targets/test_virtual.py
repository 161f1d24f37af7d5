"""What is particular to the research target."""

from __future__ import annotations

from sparsebit.targets.virtual import VIRTUAL


def test_it_accepts_everything_and_stores_every_width() -> None:
    assert not VIRTUAL.accepts and VIRTUAL.stored_bits == (2, 3, 4, 5, 6, 8) and VIRTUAL.runtime is None


def test_a_batch_norm_is_folded_and_never_quantized_by_itself() -> None:
    assert VIRTUAL.rule("batch_norm") is None
    assert VIRTUAL.fuses("conv2d", "batch_norm") and VIRTUAL.fuses("batch_norm", "relu")


def test_nothing_is_quantized_behind_an_operator() -> None:
    assert not any(rule.output for rule in VIRTUAL.rules.values())
