"""Small nets that the tests of pruning share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.sparse import SparseModel


class Residual(nn.Module):
    """Two convolutions around a shortcut, with batch norm, a pool and a classifier."""

    def __init__(self, width: int = 16, inner: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.bn0 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, inner, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn0(self.stem(x)))
        y = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(x + self.bn2(self.conv2(y)))
        return self.fc(x.mean((2, 3)))


def residual(seed: int = 0) -> nn.Module:
    """Random weights and statistics, in double precision."""
    torch.manual_seed(seed)
    net = Residual().double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.uniform_(-0.5, 0.5)
            module.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return net


def perceptron() -> nn.Module:
    """Two linear layers, in double precision."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def labels(count: int = 4) -> Tensor:
    return torch.arange(count) % 5


def make(net: nn.Module | None = None, **settings: Any) -> SparseModel:
    """A structured l1norm model at half, but for these settings."""
    sparser = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}
    top = {key: settings.pop(key) for key in ("IGNORE", "SKIP_TRACE_MODULES", "SCHEDULE") if key in settings}
    return SparseModel(
        net or residual(), {"SPARSER": {**sparser, **settings}, **top}, example_inputs=images()
    )


def widths(smodel: SparseModel) -> dict[str, int]:
    """Channels that are left, by layer."""
    return {row.name: row.after for row in smodel.report().rows}


def assert_same(one: Tensor, other: Tensor) -> None:
    """Equal but for the rounding of double precision."""
    assert float((one - other).detach().abs().max() / other.detach().abs().max()) < 1e-12
