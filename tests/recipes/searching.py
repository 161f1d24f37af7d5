"""Metrics and names that tests of the search share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.recipes import Compressed

Batches = list[tuple[Tensor, Tensor]]


def by_config(score: Callable[[QuantModel], float]) -> Callable[[nn.Module], float]:
    """A metric that looks at what was done instead of at data."""
    return lambda model: score(model) if isinstance(model, QuantModel) else 1.0


def names(found: Compressed) -> list[str]:
    return [trial.name for trial in found.trials]


def lost_to_pruning(model: nn.Module) -> float:
    return 0.5 if sum(p.numel() for p in model.parameters()) < 10_000 else 0.0


class Net(nn.Module):
    """Enough channels to prune, a batch norm to re-estimate, a skip to place quantizers around."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.inner, self.head = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.classes = nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(images)))
        x = torch.relu(self.head(torch.relu(x + self.inner(x))))
        return self.classes(x.mean((2, 3)))
