"""CIFAR ResNet-(6n+2) with parameter-free shortcuts (He et al., 2015, section 4.2, option A)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions; where the stage changes, the shortcut is strided and zero-padded in channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.pad = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride != 1 or self.pad:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """Three stages of ``blocks`` blocks with 1, 2 and 4 times ``width`` channels."""

    def __init__(self, blocks: int, *, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = self._stage(width, width, blocks, stride=1)
        self.layer2 = self._stage(width, 2 * width, blocks, stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, blocks, stride=2)
        self.linear = nn.Linear(4 * width, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        first = Block(inputs, outputs, stride)
        return nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = F.adaptive_avg_pool2d(x, 1)
        return self.linear(x.view(x.size(0), -1))


def cifar_resnet20(*, width: int = 16, classes: int = 10) -> CifarResNet:
    """269,722 parameters at full size."""
    return CifarResNet(3, width=width, classes=classes)


def cifar_resnet56(*, width: int = 16, classes: int = 10) -> CifarResNet:
    """853,018 parameters at full size."""
    return CifarResNet(9, width=width, classes=classes)
