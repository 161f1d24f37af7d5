"""The share of one layer: set by hand, by rule, or kept before an addition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.sparse import SparseModel
from tests.sparse.nets import make, widths


def test_each_layer_by_hand_and_by_rule() -> None:
    smodel = make(ROUND_TO=1, SPECIFIC={"conv1": {"RATIO": 0.75}})
    smodel.model.stem.sparser.set_ratio(0.25)  # type: ignore[union-attr,operator]
    smodel.calc_params()
    assert widths(smodel) == {"stem": 12, "conv1": 6, "fc": 5}
    with pytest.raises(SparsebitError, match=r"got: *1\.5"):
        smodel.model.stem.sparser.set_ratio(1.5)  # type: ignore[union-attr,operator]


def test_flat_names_reach_nested_layers() -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 16), nn.ReLU()), nn.Linear(16, 16), nn.Linear(16, 2))
    smodel = SparseModel(
        net, {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}, torch.zeros(1, 4)
    )
    keys = list(smodel.model.state_dict())
    smodel.model._0_0.sparser.set_ratio(0.0)  # type: ignore[union-attr,operator]
    smodel.calc_params()
    assert widths(smodel)["0.0"] == 16
    assert keys == list(net.state_dict()) == list(smodel.model.state_dict())


def test_nothing_before_an_addition() -> None:
    smodel = make()
    smodel.disable_sparse_before_add()
    smodel.calc_params()
    assert widths(smodel) == {"stem": 16, "conv1": 16, "fc": 5}


def test_a_ratio_by_hand_on_a_layer_that_cannot_shrink_is_an_error() -> None:
    smodel = make()
    smodel.sparsers["fc"].set_ratio(0.5)
    with pytest.raises(SparsebitError, match=r"cannot lose channels[\s\S]*'fc'[\s\S]*CLASSIFIER: true"):
        smodel.calc_params()
    assert "strategy='l1norm', ratio=0.5" in repr(smodel.sparsers["fc"])
