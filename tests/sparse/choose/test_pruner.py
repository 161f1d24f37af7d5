"""Criteria in use: several in one model, and their training terms."""

from __future__ import annotations

import pytest

from sparsebit.batches import DataError
from tests.sparse.nets import images, make, residual, widths


def test_several_criteria_in_one_model() -> None:
    smodel = make(SPECIFIC={"conv1": {"STRATEGY": "activation_norm"}})
    with pytest.raises(DataError):
        smodel.calc_params()
    smodel.calc_params([images()])
    assert widths(smodel)["conv1"] == 16


def test_the_training_term_of_slimming() -> None:
    smodel = make(STRATEGY="slimming", OPTIONS={"strength": 0.5})
    net = residual()
    expected = 0.5 * sum(float(bn.weight.detach().abs().sum()) for bn in (net.bn0, net.bn1, net.bn2))
    assert float(smodel.penalty().detach()) == pytest.approx(expected)
    smodel.penalty().backward()  # type: ignore[no-untyped-call]
    assert float(make().penalty()) == 0
