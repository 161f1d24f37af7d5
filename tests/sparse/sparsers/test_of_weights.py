"""Criteria of the weights, where their equations say too little."""

from __future__ import annotations

import pytest
import torch

from sparsebit.sparse.sparsers import Rows, make_sparser


def test_chance_follows_seed_and_name() -> None:
    rows, other = (Rows(name=name, weight=torch.randn(6, 5)) for name in "wv")
    assert not torch.equal(make_sparser("random").score(rows), make_sparser("random").score(other))
    assert not torch.equal(
        make_sparser("random").score(rows), make_sparser("random", {"seed": 1}).score(rows)
    )


def test_equal_filters_have_no_distance() -> None:
    twins = Rows(name="w", weight=torch.ones(4, 3))
    assert torch.equal(make_sparser("fpgm").score(twins), torch.zeros(4))


def test_lamp_of_nothing_is_nothing() -> None:
    assert torch.equal(make_sparser("lamp").score(Rows(name="w", weight=torch.zeros(3, 2))), torch.zeros(3))


def test_the_penalty_of_slimming_makes_scales_small() -> None:
    scales = [torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)]
    penalty = make_sparser("slimming", {"strength": 0.1}).penalty(scales)
    assert penalty is not None
    penalty.backward()  # type: ignore[no-untyped-call]
    assert penalty.item() == pytest.approx(0.6)
    assert scales[0].grad is not None
    torch.testing.assert_close(scales[0].grad, torch.tensor([0.1, -0.1]))
    assert make_sparser("slimming").penalty([]) is None
    assert make_sparser("l1norm").penalty(scales) is None
