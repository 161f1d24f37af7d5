"""The moments of a training run, without any framework."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.integrations.steps import PruningSteps, QatSteps, find
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel

X = torch.randn(8, 4)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def quantized() -> QuantModel:
    return QuantModel(net().eval(), {**_CONFIG}, (X,))


_CONFIG = {
    "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "lsq", "BIT": 4}},
    "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 8}},
}


def test_the_model_is_found_inside_of_wrappers() -> None:
    qmodel = quantized()
    assert find(nn.ModuleDict({"inner": nn.Sequential(qmodel)}), QuantModel) is qmodel
    with pytest.raises(SparsebitError, match="contains 0"):
        find(net(), QuantModel)
    with pytest.raises(SparsebitError, match="contains 2"):
        find(nn.ModuleList([quantized(), quantized()]), QuantModel)


def test_training_begins_calibrated_and_switched_on() -> None:
    qmodel, steps = quantized(), QatSteps(batches=2)
    steps.begin(qmodel, iter([X, X, X]))
    assert qmodel.enable_qat and qmodel.training
    assert all(q.is_enable for q in qmodel.quantizers.values() if not q.fake_fused)
    scale = next(iter(qmodel.quantizers.values())).scale.clone()
    steps.begin(qmodel, [100 * X])  # a restart measures nothing anew
    assert torch.equal(scale, next(iter(qmodel.quantizers.values())).scale)


def test_without_data_the_message_says_where_to_give_it() -> None:
    with pytest.raises(SparsebitError, match="pass data="):
        QatSteps().begin(quantized(), None)


def test_ranges_and_statistics_settle() -> None:
    qmodel, steps = quantized(), QatSteps(observers="update", settle_after=2)
    steps.begin(qmodel, [X])
    followed = [q for q in qmodel.quantizers.values() if q.following]
    assert followed
    norm = next(m for m in qmodel.modules() if isinstance(m, nn.BatchNorm1d))
    steps.after_step(qmodel, 1)
    assert norm.training and all(q.following for q in followed)
    steps.after_step(qmodel, 2)
    assert not norm.training and not any(q.following for q in followed)
    assert not qmodel.train().model.get_submodule("1").training


def test_pruning_follows_its_schedule() -> None:
    config = {
        "SPARSER": {"TYPE": "unstructured", "STRATEGY": "l1norm", "RATIO": 0.8},
        "SCHEDULE": {"TYPE": "cubic", "START": 1, "EVERY": 2, "TIMES": 2},
    }
    smodel, steps = SparseModel(net(), config, (X,)), PruningSteps()
    for step in range(1, 6):
        steps.after_step(nn.Sequential(smodel), step)
    assert steps.pruned_at == [2, 4]
