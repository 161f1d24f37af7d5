"""What sensitivities are measured on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.analysis.bits.nets import Net


@pytest.fixture(scope="module")
def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 3, 8, 8, generator=generator), torch.randint(4, (8,), generator=generator))
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()
