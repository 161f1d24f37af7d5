"""Sums from which SQNR, cosine and mean squared error follow."""

from __future__ import annotations

import math

import pytest
import torch

from sparsebit.analysis import Agreement, ErrorProfile


def test_agreement_at_its_ends() -> None:
    x = torch.ones(3)
    assert Agreement.of(x, x).sqnr_db == math.inf and Agreement.of(x, x).to_dict()["sqnr_db"] is None
    assert Agreement.of(torch.zeros(3), x).sqnr_db == -math.inf
    assert Agreement.of(x, -x).cosine == pytest.approx(-1)
    assert ErrorProfile(layers=(), tensors=(), output=Agreement()).keep_float() == ()
