"""ShuffleNetV2 (Ma et al., 2018, arXiv:1807.11164) in small."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ShuffleUnit(nn.Module):
    """ShuffleNetV2's unit: half the channels pass, half are convolved, then the halves are interleaved."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        self.main = nn.Sequential(
            nn.Conv2d(inputs if stride == 2 else half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
        )
        self.side = nn.Sequential()
        if stride == 2:
            depthwise = nn.Conv2d(inputs, inputs, 3, 2, 1, groups=inputs, bias=False)
            pointwise = nn.Conv2d(inputs, half, 1, bias=False)
            self.side = nn.Sequential(
                depthwise, nn.BatchNorm2d(inputs), pointwise, nn.BatchNorm2d(half), nn.ReLU(inplace=True)
            )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            passed, convolved = x.chunk(2, dim=1)
            out = torch.cat((passed, self.main(convolved)), dim=1)
        else:
            out = torch.cat((self.side(x), self.main(x)), dim=1)
        batch, channels, height, width = out.size()
        out = out.view(batch, 2, channels // 2, height, width)
        return torch.transpose(out, 1, 2).contiguous().view(batch, -1, height, width)


class ShuffleNetV2(nn.Module):
    """Ma et al., 2018 (arXiv:1807.11164), in small."""

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True)
        )
        self.stage2 = nn.Sequential(ShuffleUnit(12, 24, 2), ShuffleUnit(24, 24, 1))
        self.stage3 = nn.Sequential(ShuffleUnit(24, 48, 2), ShuffleUnit(48, 48, 1))
        self.fc = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.stage3(self.stage2(self.conv1(x))).mean([2, 3]))
