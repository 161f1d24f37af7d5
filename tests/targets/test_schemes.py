"""Which schemes exist on which side."""

from __future__ import annotations

from sparsebit.targets.schemes import PER_TENSOR_OR_CHANNEL, SCHEMES, SCHEMES_OF, SIDE_WORD, SIDES


def test_groups_are_for_weights_and_tokens_for_activations() -> None:
    assert set(SCHEMES_OF["W"]) - set(SCHEMES_OF["A"]) == {"per-group-symmetric", "per-group-affine"}
    assert set(SCHEMES_OF["A"]) - set(SCHEMES_OF["W"]) == {"per-token-symmetric", "per-token-affine"}
    assert set(SCHEMES_OF["W"]) | set(SCHEMES_OF["A"]) == set(SCHEMES)
    assert set(PER_TENSOR_OR_CHANNEL) == set(SCHEMES_OF["W"]) & set(SCHEMES_OF["A"])


def test_every_side_has_a_word() -> None:
    assert list(SIDE_WORD) == list(SIDES) == ["W", "A"]
