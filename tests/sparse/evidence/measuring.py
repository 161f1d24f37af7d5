"""Data, and what criteria need of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.sparse.evidence.gather import gather
from sparsebit.sparse.evidence.statistic import STATISTICS
from sparsebit.sparse.layers import find_layers
from sparsebit.sparse.masking.masked_graph import MaskedGraph

DATA = [
    (torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(i)), torch.arange(5) % 3)
    for i in range(3)
]


def measure(
    gm: CapturedModule, needs: set[str], data: Any, loss: Any = None, extra: Any = (), **statistics: Any
) -> Any:
    statistics = {name: STATISTICS[name] for name in needs} | statistics
    return gather(MaskedGraph(gm), find_layers(gm), statistics, data, loss, extra=extra)


def measure_model(
    model: nn.Module, needs: set[str], data: Any = DATA, loss: Any = functional.cross_entropy
) -> Any:
    return measure(capture(model, data[0][0]), needs, data, loss)
