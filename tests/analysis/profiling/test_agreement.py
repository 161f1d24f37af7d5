"""Sums from which SQNR, cosine and mean squared error follow."""

from __future__ import annotations

import math
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch

from sparsebit.analysis import Agreement, ErrorProfile
from sparsebit.analysis.profiling.agreement import float_outputs


def test_agreement_at_its_ends() -> None:
    x = torch.ones(3)
    assert Agreement.of(x, x).sqnr_db == math.inf and Agreement.of(x, x).to_dict()["sqnr_db"] is None
    assert Agreement.of(torch.zeros(3), x).sqnr_db == -math.inf
    assert Agreement.of(x, -x).cosine == pytest.approx(-1)
    assert ErrorProfile(layers=(), tensors=(), output=Agreement()).keep_float() == ()


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 3 * 4096 + 5])
def test_sums_are_those_of_float64(count: int) -> None:
    x = torch.randn(count, generator=torch.manual_seed(count)) + 3
    y = x + 1e-3 * torch.randn(count, generator=torch.manual_seed(count + 1))
    found, wide = Agreement.of(x, y), (x.double(), y.double())
    assert found.signal == pytest.approx(float(wide[0].square().sum()), rel=1e-6)
    assert found.product == pytest.approx(float((wide[0] * wide[1]).sum()), rel=1e-6)
    assert found.noise == pytest.approx(float((wide[0] - wide[1]).square().sum()), rel=1e-6)
    assert found.count == count


@pytest.mark.parametrize("mask", [-math.inf, torch.finfo(torch.float32).min, -1e30, -1e9, -1e4])
def test_masked_places_do_not_count(mask: float) -> None:
    x, y = torch.tensor([3.0, 4.0, mask]), torch.tensor([3.0, 3.5, mask])
    assert Agreement.of(x, y).relative == Agreement.of(x[:2], y[:2]).relative == 0.01
    assert Agreement.of(torch.tensor([torch.nan, mask]), torch.zeros(2)).relative == math.inf


def test_outputs_are_found_in_containers_of_any_kind() -> None:
    x = torch.ones(2)
    outputs = SimpleNamespace(logits=x, kept=UserDict(hidden=[2 * x], ids=torch.tensor([1])))
    assert [one.tolist() for one in float_outputs(outputs)] == [[1, 1], [2, 2]]
