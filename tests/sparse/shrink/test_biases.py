"""Biases that stay: masks leave them, and the smaller model adds what they added; or it is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.sparse import SparseModel

CONFIG = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1, "PRUNE_BIAS": False}


def prune(net: nn.Module, *inputs: Tensor, **settings: Any) -> SparseModel:
    smodel = SparseModel(net.double().eval(), {"SPARSER": CONFIG | settings}, inputs)
    smodel.calc_params()
    return smodel


class Residual(nn.Module):
    """Two layers make the same channels, and two read them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.left, self.right = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = x + self.c(torch.sigmoid(self.b(x)))
        out: Tensor = self.left(torch.tanh(x)) * self.right(x.abs() + 0.5)
        return out


class Overwritten(nn.Module):
    """A view of zeros is written, and the tensor behind it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8, bias=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x.view(-1, 2, 4).add_(4)
        out: Tensor = self.b(x)
        return out


NETS = {
    "linear": lambda: (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)), torch.randn(4, 6)),
    "conv": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Softplus(), nn.MaxPool2d(2), nn.Conv2d(8, 6, 2)),
        torch.randn(2, 3, 8, 8),
    ),
    "flatten": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 16, 3)),
        torch.randn(2, 3, 6, 6),
    ),
    "norm": lambda: (  # the factor and the shift of the norm go, so that nothing is left to carry
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)),
        torch.randn(2, 3, 8, 8),
    ),
    "depthwise": lambda: (
        nn.Sequential(
            nn.Conv2d(3, 8, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, groups=8), nn.SiLU(), nn.Conv2d(8, 4, 1)
        ),
        torch.randn(2, 3, 8, 8),
    ),
    "residual": lambda: (Residual(), torch.randn(4, 6)),
    "in place": lambda: (  # one sample, where a bias and the result have the same memory if it is only expanded
        nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(inplace=True), nn.Linear(8, 3)),
        torch.randn(1, 6),
    ),
    "overwritten view": lambda: (Overwritten(), torch.randn(4, 6)),
    "one vector": lambda: (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(6)),
}


@pytest.mark.parametrize("name", NETS)
def test_the_smaller_model_computes_what_the_masked_one_does(name: str) -> None:
    torch.manual_seed(0)
    net, x = NETS[name]()
    x = x.double()
    smodel = prune(net, x)
    other = torch.randn_like(x)
    expected, small = smodel(other), smodel.shrink()
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    assert torch.allclose(small(other), expected, rtol=1e-9, atol=1e-12)
    gone = prune(net, x, PRUNE_BIAS=True)
    assert name == "norm" or not torch.allclose(small(other), gone(other), atol=1e-6)


def test_masks_leave_biases() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    smodel = prune(net, torch.randn(4, 6).double())
    first, last = smodel.model.get_submodule("0"), smodel.model.get_submodule("2")
    assert int((first.weight == 0).all(1).sum()) == 4  # type: ignore[operator, union-attr, call-overload]
    assert torch.equal(first.bias, net[0].bias) and torch.equal(last.weight, net[2].weight)  # type: ignore[arg-type]


class Summed(nn.Module):
    """The channels are added up, which takes their constants where no bias is."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x).sum(-1, keepdim=True))
        return out


REFUSED = {
    "pads its input": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)),
        (2, 3, 8, 8),
    ),
    "linear at node '_2'.* has no bias": (
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)),
        (4, 6),
    ),
    "cannot be followed through sum": (Summed(), (4, 6)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_carried_is_refused_with_the_reason(reason: str) -> None:
    net, shape = REFUSED[reason]
    nn.init.ones_(next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)).bias)
    smodel = prune(net, torch.randn(shape).double())
    with pytest.raises(
        GraphError, match=rf"biases of removed channels[\s\S]*{reason}[\s\S]*PRUNE_BIAS: true"
    ):
        smodel.shrink()
