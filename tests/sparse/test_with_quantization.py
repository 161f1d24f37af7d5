"""Pruning and quantization together: neither knows the other, and what they share is the parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from sparsebit.config import load_qconfig
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel, hold_zeros
from tests.sparse.nets import images, labels, residual

X, Y = images().float(), labels()


def prune(**sparser: Any) -> SparseModel:
    smodel = SparseModel(residual().float(), {"SPARSER": {"STRATEGY": "l1norm", **sparser}}, X)
    smodel.calc_params()
    return smodel


def train_quantized(qmodel: QuantModel) -> None:
    qmodel.prepare_calibration()
    qmodel(X)
    qmodel.init_QAT()
    qmodel.train()
    optimizer = torch.optim.SGD(qmodel.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(qmodel(X), Y).backward()
        optimizer.step()


@pytest.mark.parametrize("fuse", [False, True])
def test_two_of_four_holds_while_quantized_weights_are_trained(fuse: bool) -> None:
    smodel = prune(TYPE="nm")
    qmodel = QuantModel(smodel.model, load_qconfig("int8_onnxruntime", [f"SCHEDULE.FUSE_BN={fuse}"]), X)
    if fuse:  # folding a batch norm makes new weights
        hold_zeros(qmodel)
    train_quantized(qmodel)
    weight = dict(qmodel.model.named_parameters())["conv1.weight"]
    assert bool(((weight != 0).view(24, 4, 4, 3, 3).sum(2) == 2).all())
    assert not torch.equal(weight, residual().float().get_parameter("conv1.weight"))


def test_a_shrunk_model_is_quantized_like_any_other() -> None:
    small = prune(TYPE="structured", RATIO=0.5).shrink()
    qmodel = QuantModel(small, "int8_onnxruntime", X)
    qmodel.prepare_calibration()
    qmodel(X)
    qmodel.calc_qparams()
    qmodel.set_quant(True, True)
    error = (qmodel(X) - small(X)).abs().max() / small(X).abs().max()
    assert float(error.detach()) < 0.1
