"""Where zeros differ from absence: the masked model, run at its full size, computes what the shrunk one does."""

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
from sparsebit.sparse.masking.masked_graph import MaskedGraph
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


def test_only_statistics_over_channels_are_replaced() -> None:
    smodel = SparseModel(residual(), HALF, images())
    smodel.calc_params()
    assert not smodel.masked.replaced  # zeros do
    with_norm = SparseModel(Normed().double().eval(), HALF, torch.randn(2, 4, dtype=torch.float64))
    assert not with_norm.masked.replaced  # nothing is pruned yet
    with_norm.calc_params()
    assert set(with_norm.masked.replaced) == {"norm", "last"}
    assert "statistics are taken over the remaining channels: layer_norm at node 'norm'" in str(
        with_norm.report()
    )


def log_of_a_part(t: Tensor) -> Tensor:
    t[:, :4].log_()
    return t


class Between(nn.Module):
    """A convolution, something of its channels, and another convolution."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1), between
        self.scale = nn.Parameter(torch.rand(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(self, self.first(x)))
        return y


def centered(net: Between, t: Tensor) -> Tensor:
    return t - t.mean(1, keepdim=True)


def by_rms(net: Between, t: Tensor) -> Tensor:
    return t * torch.rsqrt(t.pow(2).mean(1, keepdim=True) + 1e-6) * net.scale


def standardized(net: Between, t: Tensor) -> Tensor:
    d = t - t.mean(1, keepdim=True)
    return d / torch.sqrt((d * d).mean(1, keepdim=True) + 1e-5)


def by_std(net: Between, t: Tensor) -> Tensor:
    return t / (t.std(1, keepdim=True) + 1e-5)


def times_mean(net: Between, t: Tensor) -> Tensor:
    return t * t.mean(1, keepdim=True)


@pytest.mark.parametrize("between", [centered, by_rms, standardized, by_std, times_mean])
def test_norms_written_by_hand(between: Any) -> None:
    """Survivors decide in a norm; a mean on its own keeps its divisor, as with zeros."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    smodel = SparseModel(Between(between).double().eval(), HALF, x)
    smodel.calc_params()
    small = smodel.shrink()
    assert small.first.out_channels == 4
    assert_same(smodel, small, (x,))
    assert bool(smodel.masked.replaced) == (between is not times_mean)
    if between in (centered, by_std):  # by hand, on the survivors alone
        kept, last = smodel.kept()["first"], smodel.model.get_submodule("last")
        assert isinstance(last, nn.Conv2d)
        with torch.no_grad():
            survivors = between(smodel.model, smodel.model.get_submodule("first")(x)[:, kept])
            want = nn.functional.conv2d(survivors, last.weight[:, kept], last.bias)
            assert torch.allclose(small(x), want)


@pytest.mark.parametrize(
    "between",
    [
        lambda net, t: t + t.std(1, keepdim=True),
        lambda net, t: t * torch.sigmoid(t.var(1, keepdim=True)),
        lambda net, t: t * t.std(1)[:, None],
    ],
)
def test_other_statistics_over_channels_keep_them(between: Any) -> None:
    smodel = SparseModel(Between(between).eval(), HALF, torch.randn(2, 3, 7, 7))
    assert "works along it" in str(smodel.groups().by_name("first").frozen)


class Standardized(nn.Conv2d):
    """Weights standardized over their inputs, as in nets without batch norms."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = nn.functional.batch_norm(flat, None, None, training=True, momentum=0.0).reshape_as(
            self.weight
        )
        return nn.functional.conv2d(x, weight, self.bias)


def test_standardized_weights() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    net = nn.Sequential(
        Standardized(3, 8, 3), nn.ReLU(), Standardized(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1)
    )
    smodel = SparseModel(net.double().eval(), HALF, x)
    smodel.calc_params()
    assert smodel.masked.replaced
    assert_same(smodel, smodel.shrink(), (x,))


@pytest.mark.parametrize("strategy", ["taylor", "fisher", "taylor2", "wanda", "hrank"])
def test_evidence_halfway_is_that_of_the_smaller_model(strategy: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.arange(8) % 2
    config = {"SPARSER": {**HALF["SPARSER"], "STRATEGY": strategy}}
    smodel = SparseModel(Normed().double().eval(), config, x)
    batches, loss = [(x, y)], nn.functional.cross_entropy
    smodel.calc_params([(x, y)], loss)
    small, plan, pruner = smodel.shrink(), smodel.plan(), smodel.pruner
    assert isinstance(small, CapturedModule)
    got = gather(smodel.masked, pruner.layers, pruner.statistics, batches, loss)
    want = gather(MaskedGraph(small), find_layers(small), pruner.statistics, batches, loss)
    for need in pruner.statistics:
        for name, expected in want[need].items():
            found = got[need][name]
            if need == "feature_rank":  # one a row
                rows = plan.index.get(name, {}).get(0, torch.arange(len(found)))
                assert torch.equal(found[rows], expected), name
            else:
                assert torch.allclose(plan.cut(name, found), expected), (need, name)


@pytest.mark.parametrize(
    "between",
    [
        lambda net, t: t.abs().sqrt(),
        lambda net, t: t / t,
        lambda net, t: torch.log(t.square()),
        lambda net, t: log_of_a_part(t.square()),
    ],
)
def test_removed_channels_divide_nothing_by_zero(between: Any) -> None:
    """Neither results nor gradients, such as that of a root at zero, become infinite or NaN."""
    x = torch.randn(2, 3, 7, 7)
    smodel = SparseModel(Between(between), HALF, x)
    smodel.calc_params()
    result = smodel(x)
    result.sum().backward()
    gradients = [parameter.grad for parameter in smodel.parameters() if parameter.grad is not None]
    assert bool(result.isfinite().all()) and all(bool(one.isfinite().all()) for one in gradients)
