"""The verb that measures, chooses and hands back a config."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import (
    mixed_precision,
)
from sparsebit.quantization import parse_qconfig

FAST = ("W.OBSERVER.TYPE=minmax", "A.OBSERVER.TYPE=minmax")


CONFIG = parse_qconfig("w4a8", ["DEVICE=cpu", "FIRST_LAST=null", *FAST])


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4)
    ).eval()


@pytest.fixture(scope="module")
def batches() -> list[Tensor]:
    return [torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))]


def test_the_verb_does_all_of_it(net: nn.Module, batches: list[Tensor]) -> None:
    budget = 500.0
    chosen = mixed_precision(
        net, CONFIG, batches, example_inputs=(batches[0],), size=budget, bits=(2, 4, 8), progress=False
    )
    assert chosen.size <= budget and all(choice.side == "W" for choice in chosen.sensitivity.choices)
    assert any(point.cost <= budget for point in chosen.pareto)
    text = json.dumps(chosen.to_dict())
    assert json.loads(text)["config"] == chosen.config.to_dict()
    assert "predicted error" in str(chosen)
