"""What widths and latencies are chosen for: a chain of layers, and one batch of its images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn


@pytest.fixture(scope="module")
def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)
    ).eval()


@pytest.fixture(scope="module")
def images() -> list[Tensor]:
    return [torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))]
