"""AlexNet and VGG: convolutions, pools and a classifier on the flattened map."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AlexNet(nn.Module):
    """Krizhevsky, 2012, one tower: large strided kernels, overlapping pools, a flattened classifier."""

    def __init__(self, *, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 11, 4, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(width, 3 * width, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(3 * width, 4 * width, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((3, 3))
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(4 * width * 9, 8 * width),
            nn.ReLU(inplace=True),
            nn.Linear(8 * width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class VGG(nn.Module):
    """Simonyan and Zisserman, 2014: 3x3 convolutions with biases, flatten into the classifier."""

    def __init__(
        self, plan: Sequence[int | str], *, size: int, classes: int = 10, batch_norm: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for item in plan:
            if isinstance(item, str):
                layers.append(nn.MaxPool2d(2, 2))
                size //= 2
                continue
            layers.append(nn.Conv2d(channels, item, 3, padding=1))
            layers += [nn.BatchNorm2d(item)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            channels = item
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * size * size, 64),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(64, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
