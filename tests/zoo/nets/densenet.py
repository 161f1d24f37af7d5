"""DenseNet (Huang et al., 2016, arXiv:1608.06993) in small."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Pre-activation bottleneck that reads the concatenation of all layers before it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = (
            nn.BatchNorm2d(4 * growth),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )
        self.relu = nn.ReLU()

    def forward(self, features: list[Tensor]) -> Tensor:
        x = self.conv1(self.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu(self.norm2(x)))


class DenseNet(nn.Module):
    """Huang et al., 2016 (arXiv:1608.06993): BN before convolution, concatenation everywhere."""

    def __init__(self, depths: Sequence[int] = (3, 3), *, growth: int = 8, classes: int = 10) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for depth in depths:
            self.blocks.append(nn.ModuleList(DenseLayer(channels + i * growth, growth) for i in range(depth)))
            channels += depth * growth
            halved = nn.Conv2d(channels, channels // 2, 1, bias=False)
            self.transitions.append(
                nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), halved, nn.AvgPool2d(2))
            )
            channels //= 2
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block, transition in zip(self.blocks, self.transitions, strict=True):
            features = [x]
            for layer in block:
                features.append(layer(features))
            x = transition(torch.cat(features, 1))
        x = F.relu(self.norm(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))
