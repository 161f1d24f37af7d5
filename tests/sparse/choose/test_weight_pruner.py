"""Zeros inside weights: exact counts, N of M, blocks, over one layer or all."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sparsebit.config.pruning.criteria import SPARSER_RULES
from sparsebit.sparse import SPARSERS
from tests.sparse.nets import assert_same, images, labels, make, residual

BATCHES = [(images(), labels()), (images(2), labels(2))]


@pytest.mark.parametrize(
    "name", [name for name in sorted(SPARSERS) if "unstructured" in SPARSER_RULES[name].types]
)
def test_exact_zeros_with_every_criterion(name: str) -> None:
    smodel = make(TYPE="unstructured", STRATEGY=name, RATIO=0.3)
    smodel.calc_params(BATCHES, functional.cross_entropy)
    for layer in ("stem", "conv1", "conv2"):
        weight = smodel.model.get_parameter(f"{layer}.weight")
        assert int((weight == 0).sum()) == int(weight.numel() * 0.3)
    assert not bool((smodel.model.fc.weight == 0).any())  # type: ignore[union-attr]
    assert "it computes the outputs" in str(smodel.report())


def test_the_classifier_on_request() -> None:
    for settings in ({"CLASSIFIER": True}, {"SPECIFIC": {"fc": {"RATIO": 0.5}}}):
        smodel = make(TYPE="unstructured", **settings)
        smodel.calc_params()
        assert int((smodel.model.fc.weight == 0).sum()) == 40  # type: ignore[union-attr]


def test_zeros_over_all_layers_together() -> None:
    smodel = make(TYPE="unstructured", SCOPE="global", RATIO=0.5)
    smodel.calc_params()
    weights = [smodel.model.get_parameter(f"{name}.weight") for name in ("stem", "conv1", "conv2")]
    total = sum(weight.numel() for weight in weights)
    assert sum(int((weight == 0).sum()) for weight in weights) == total // 2
    kept = torch.cat([weight[weight != 0].abs() for weight in weights])
    dense = torch.cat(
        [residual().get_parameter(f"{n}.weight").flatten().abs() for n in ("stem", "conv1", "conv2")]
    )
    assert torch.equal(kept.sort().values, dense.sort().values[total // 2 :])


def test_two_of_four_holds_through_training() -> None:
    smodel = make(TYPE="nm", RATIO=None)
    smodel.calc_params()
    optimizer = torch.optim.Adam(smodel.parameters(), lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(smodel(images()), labels()).backward()
        optimizer.step()
    weight = smodel.model.conv2.weight  # type: ignore[union-attr]
    runs = (weight != 0).view(16, 6, 4, 3, 3).sum(2)  # type: ignore[operator,union-attr]
    assert bool((runs == 2).all())
    assert_same(smodel.shrink()(images()), smodel(images()))


def test_blocks_of_zeros() -> None:
    smodel = make(TYPE="block", BLOCK="4x6", RATIO=0.5)
    smodel.calc_params()
    weight = smodel.model.conv1.weight  # type: ignore[union-attr]
    blocks = weight.reshape(6, 4, 24, 6).transpose(1, 2).reshape(-1, 24)  # type: ignore[operator,union-attr]
    assert int((blocks == 0).all(1).sum()) == 72
    assert int((blocks == 0).sum()) == 72 * 24
