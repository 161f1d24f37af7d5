"""``prune``: one call from a model to a smaller one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.errors import SparsebitError
from sparsebit.sparse import SparseModel, prune
from tests.sparse.nets import images, labels, residual

CONFIG = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}


def test_the_smaller_model_is_that_of_sparse_model() -> None:
    net = residual()
    before = copy.deepcopy(net.state_dict())
    small = prune(net, CONFIG, example_inputs=images())
    smodel = SparseModel(net, CONFIG, images())
    smodel.calc_params()
    assert torch.equal(small(images()), smodel.shrink()(images()))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not hasattr(net.conv1, "sparser")


@pytest.mark.parametrize("once", [False, True])
def test_the_first_batch_is_the_example(once: bool) -> None:
    data = [(images(), labels()), (images(2), labels(2))]
    config = {"SPARSER": {**CONFIG["SPARSER"], "STRATEGY": "taylor"}}
    small = prune(residual(), config, iter(data) if once else data, functional.cross_entropy)
    smodel = SparseModel(residual(), config, images(1))
    smodel.calc_params(data, functional.cross_entropy)
    assert torch.equal(small(images()), smodel.shrink()(images()))


def test_zeros_in_a_copy() -> None:
    net = residual()
    small = prune(net, {"SPARSER": {**CONFIG["SPARSER"], "TYPE": "unstructured"}}, example_inputs=images())
    assert int((small.conv1.weight == 0).sum()) == small.conv1.weight.numel() // 2  # type: ignore[union-attr,operator,arg-type]
    assert not bool((net.conv1.weight == 0).any())


def test_a_choice_of_nothing_is_an_error() -> None:
    config = {"SPARSER": {**CONFIG["SPARSER"], "ROUND_TO": 64}}
    with pytest.raises(SparsebitError, match="nothing could be pruned"):
        prune(residual(), config, example_inputs=images())


def test_what_is_not_a_model_is_refused() -> None:
    with pytest.raises(SparsebitError, match=r"only a torch.nn.Module(.|\n)*got: *a Tensor"):
        prune(images(), CONFIG, residual())  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["activation_norm", "taylor"])
def test_measuring_leaves_the_buffers_of_the_model_alone(strategy: str) -> None:
    class Counts(nn.Module):
        """Has one graph for each mode, so that its batch norm is measured in the mode it is in."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.norm(self.a(x))
            out: Tensor = self.b(torch.relu(x + 1 if self.training else x))
            return out

    net, data = Counts().train(), [(torch.randn(8, 6), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))]
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    settings = {"TYPE": "structured", "STRATEGY": strategy, "RATIO": 0.5, "ROUND_TO": 1}
    small = prune(net, {"SPARSER": settings}, data, functional.cross_entropy)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert small.state_dict()["calls"] == 0
