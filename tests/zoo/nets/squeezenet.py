"""SqueezeNet (Iandola et al., 2016, arXiv:1602.07360) in small."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Fire(nn.Module):
    """SqueezeNet's unit: squeeze 1x1, then 1x1 and 3x3 expansions side by side."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.squeeze(x))
        return torch.cat([self.activation(self.expand1x1(x)), self.activation(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """Iandola et al., 2016 (arXiv:1602.07360): a convolution as classifier, ceil-mode pools."""

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(16, 4, 16),
            Fire(32, 4, 16),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(32, 8, 32),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Conv2d(64, classes, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)
