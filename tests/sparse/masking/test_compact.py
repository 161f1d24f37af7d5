"""Where zeros differ from absence, what is trained is what shrinking gives: over the zoo, and through training."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from sparsebit.graph import CapturedModule
from sparsebit.sparse import SparseModel
from sparsebit.sparse.evidence.gather import gather
from sparsebit.sparse.layers import find_layers
from tests.sparse.nets import images, residual
from tests.sparse.zoo import STRUCTURES

HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l2norm", "RATIO": 0.5, "ROUND_TO": 1}}


def floats(output: Any) -> list[Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.is_floating_point()]


def assert_same(smodel: SparseModel, small: nn.Module, inputs: tuple[Any, ...]) -> None:
    with torch.no_grad():
        for one, other in zip(floats(smodel(*inputs)), floats(small(*inputs)), strict=True):
            assert float((one - other).abs().max()) <= 1e-12 * float(other.abs().max())


@pytest.mark.parametrize("name", sorted(STRUCTURES)[::3])  # the engine's own tests go through all of them
def test_structures_of_the_zoo(name: str) -> None:
    structure = STRUCTURES[name]
    inputs = structure.inputs()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what capturing fixed is not the question here
        smodel = SparseModel(structure.make(), HALF, inputs)
    smodel.calc_params()
    small = smodel.shrink()
    assert_same(smodel, small, inputs)
    assert smodel.report().params_after == sum(parameter.numel() for parameter in small.parameters())


class Normed(nn.Module):
    """A norm over channels, a batch norm, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 12)
        self.bn = nn.BatchNorm1d(12)
        self.norm = nn.LayerNorm(12)
        self.lstm = nn.LSTM(12, 8, batch_first=True)
        self.last = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.bn(self.up(x)))
        z, _ = self.lstm(y[:, None])
        return self.head(self.last(z[:, 0]))


def normed_weight() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 12)), nn.ReLU(), nn.Linear(12, 2))


@pytest.mark.parametrize("make", [Normed, normed_weight])
def test_training_goes_on_as_if_it_were_smaller(make: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 4, dtype=torch.float64)
    smodel = SparseModel(make().double().eval(), HALF, x)
    smodel.calc_params()
    small = smodel.shrink()
    for model in (smodel, small):  # step by step the same
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        model.eval()
    assert_same(smodel, small, (x,))
    assert_same(smodel, smodel.shrink(), (x,))


def test_the_whole_model_is_called_where_zeros_do() -> None:
    smodel = SparseModel(residual(), HALF, images())
    smodel.calc_params()
    assert smodel._compact is None
    with_norm = SparseModel(Normed().double().eval(), HALF, torch.randn(2, 4, dtype=torch.float64))
    assert with_norm._compact is None  # nothing is gone yet
    with_norm.calc_params()
    assert with_norm._compact is not None


@pytest.mark.parametrize("strategy", ["taylor", "fisher", "taylor2", "wanda", "hrank"])
def test_evidence_halfway_is_that_of_the_smaller_model(strategy: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 2
    config = {"SPARSER": {**HALF["SPARSER"], "STRATEGY": strategy}}
    smodel = SparseModel(Normed().double().eval(), config, x)
    smodel.calc_params([(x, y)], nn.functional.cross_entropy)
    assert smodel._compact is not None
    small, plan = smodel.shrink(), smodel.plan()
    assert isinstance(small, CapturedModule)
    needs, extra = smodel._pruner.needs, smodel._pruner.extra_tensors
    got = smodel._gather([(x, y)], nn.functional.cross_entropy)
    want = gather(small, find_layers(small), extra, needs, [(x, y)], nn.functional.cross_entropy)
    for need in needs:
        for name, expected in want[need].items():
            found = got[need][name]
            if need == "feature_rank":  # one a row
                rows = plan.index.get(name, {}).get(0, torch.arange(len(found)))
                assert torch.equal(found[rows], expected), name
            else:
                assert torch.allclose(plan.cut(name, found), expected), (need, name)
