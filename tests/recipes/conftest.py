"""What searches are tested on: a small network, its data, and metrics that look at the config."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.recipes import search
from tests.recipes.searching import Batches, Net


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def batches(net: nn.Module) -> Batches:
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(32, 3, 6, 6, generator=generator) for _ in range(2)]
    with torch.no_grad():
        return [(x, net(x).argmax(1)) for x in images]


@pytest.fixture(autouse=True)
def without_heavy_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has tests of its own, and would take minutes here."""
    from sparsebit.recipes import space

    monkeypatch.setattr(search, "LEVELS", space.LEVELS[:3])
