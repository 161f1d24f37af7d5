"""A network whose layers err differently, and a quantized model of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.quantization import QuantModel, parse_qconfig


class Net(nn.Module):
    """Two convolutions around a skip, a softmax that the target leaves in float, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.first(images))
        x = torch.relu(x + self.second(x))
        return torch.softmax(self.head(x.mean((2, 3))), -1)


def quantized(net: nn.Module, batches: list[Tensor], *overrides: str) -> QuantModel:
    config = parse_qconfig("int8_onnxruntime", ["DEVICE=cpu", "A.OBSERVER.TYPE=minmax", *overrides])
    qmodel = QuantModel(net, config, example_inputs=(batches[0],))
    qmodel.calibrate(batches, progress=False)
    return qmodel
