"""Criteria in use: several in one model, and their training terms."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from sparsebit.batches import DataError
from sparsebit.sparse import SparseModel
from tests.sparse.nets import images, residual


def make(net: nn.Module | None = None, **settings: Any) -> SparseModel:
    sparser = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}
    top = {key: settings.pop(key) for key in ("IGNORE", "SCHEDULE") if key in settings}
    return SparseModel(
        net or residual(), {"SPARSER": {**sparser, **settings}, **top}, example_inputs=images()
    )


def widths(smodel: SparseModel) -> dict[str, int]:
    return {row.name: row.after for row in smodel.report().rows}


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
