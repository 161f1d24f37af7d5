"""Criteria of gradients, where their equations say too little."""

from __future__ import annotations

import torch

from sparsebit.sparse.evidence.gradients import HessianDiagonalEstimate
from sparsebit.sparse.sparsers import Rows, make_sparser


def test_gains_and_losses_cancel_in_a_taylor_term_only() -> None:
    rows = Rows(name="w", weight=torch.ones(1, 2), evidence={"gradient": torch.tensor([[1.0, -1.0]])})
    assert make_sparser("taylor").score(rows).item() == 0
    assert make_sparser("gradient_weight").score(rows).item() == 2


def test_settings_reach_the_estimate_of_the_hessian() -> None:
    found = make_sparser("hessian", {"samples": 3, "seed": 7}).statistic("hessian_diagonal")
    assert found == HessianDiagonalEstimate(samples=3, seed=7)
