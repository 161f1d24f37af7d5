"""A report with something of everything in it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.report import ParetoPoint, Report, collect

HOSTILE = "<script>alert(1)</script>"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.mix = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.stem(images))
        x = torch.relu(x + self.mix(x))
        x = x * torch.erf(x)
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


@functools.cache
def quantized(config: str = "w4a8") -> QuantModel:
    torch.manual_seed(0)
    qmodel = QuantModel(Net().eval(), config, (torch.randn(2, 3, 8, 8),))
    qmodel.calibrate(batches(), progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


def batches() -> list[Tensor]:
    chance = torch.Generator().manual_seed(0)
    return [torch.randn(8, 3, 8, 8, generator=chance) for _ in range(2)]


@functools.cache
def sample(config: str = "w4a8") -> Report:
    points = [("float", 9.0, 0.9), ("int8", 3.0, 0.89), ("w4a8", 1.5, 0.87), (HOSTILE, 4.0, 0.8)]
    return collect(
        quantized(config),
        batches(),
        name=f"net {HOSTILE}",
        accuracy=(0.9, 0.87),
        latency=(0.002, 0.0007),
        pareto=[ParetoPoint(name=n, cost=c, quality=q, chosen=n == "w4a8") for n, c, q in points],
        progress=False,
    )
