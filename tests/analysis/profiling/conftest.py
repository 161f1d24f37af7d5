"""What is profiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.analysis.profiling.nets import Net


@pytest.fixture
def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 3, 8, 8, generator=generator) for _ in range(3)]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()
