"""Pruning and quantization together: neither knows the other, and what they share is the parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from sparsebit.config import load_qconfig
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel
from tests.sparse.nets import images, labels, residual

X, Y = images().float(), labels()


def prune(**sparser: Any) -> SparseModel:
    smodel = SparseModel(residual().float(), {"SPARSER": {"STRATEGY": "l1norm", **sparser}}, X)
    smodel.calc_params()
    return smodel


def train_quantized(qmodel: QuantModel, kind: type[torch.optim.Optimizer], **options: Any) -> None:
    qmodel.prepare_calibration()
    qmodel(X)
    qmodel.init_QAT(**options)
    qmodel.train()
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(qmodel.parameters(), lr=0.02, weight_decay=0.1, **more)  # type: ignore[call-arg]
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(qmodel(X), Y).backward()
        optimizer.step()


@pytest.mark.parametrize("taken", ["model", "itself", "shrunk", "own class"])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("kind", ["nm", "unstructured"])
def test_zeros_hold_while_quantized_weights_are_trained(kind: str, fuse: bool, taken: str) -> None:
    smodel = prune(TYPE=kind, **({} if kind == "nm" else {"RATIO": 0.5}))
    held = {name: mask for name, mask in smodel.masks.items() if not bool(mask.all())}
    models = {
        "model": smodel.model,
        "itself": smodel,
        "shrunk": smodel.shrink(),
        "own class": smodel.shrink("module"),
    }
    config = load_qconfig("int8_onnxruntime", [f"SCHEDULE.FUSE_BN={fuse}"])
    qmodel = QuantModel(models[taken], config, X)
    train_quantized(qmodel, torch.optim.AdamW if fuse else torch.optim.SGD)
    weights = {name.removeprefix("model."): weight for name, weight in qmodel.model.named_parameters()}
    assert sorted(held) == ["conv1.weight", "conv2.weight", "stem.weight"]
    for name, mask in held.items():
        assert bool((weights[name][~mask] == 0).all()), name
        assert bool((weights[name][mask] != residual().float().get_parameter(name)[mask]).any()), name


@pytest.mark.parametrize("how", ["freeze", "fold"])
def test_zeros_hold_whatever_becomes_of_batch_norm(how: Any) -> None:
    qmodel = QuantModel(prune(TYPE="nm").model, "int8_onnxruntime", X)
    train_quantized(qmodel, torch.optim.SGD, batch_norm=how)
    weight = dict(qmodel.model.named_parameters())["conv1.weight"]
    assert bool(((weight != 0).view(24, 4, 4, 3, 3).sum(2) == 2).all())


def test_a_shrunk_model_is_quantized_like_any_other() -> None:
    small = prune(TYPE="structured", RATIO=0.5).shrink()
    qmodel = QuantModel(small, "int8_onnxruntime", X)
    qmodel.prepare_calibration()
    qmodel(X)
    qmodel.calc_qparams()
    qmodel.set_quant(True, True)
    error = (qmodel(X) - small(X)).abs().max() / small(X).abs().max()
    assert float(error.detach()) < 0.1
