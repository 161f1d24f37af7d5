"""A GoogLeNet-like net of inception blocks (Szegedy et al., 2014, arXiv:1409.4842)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvBnRelu(nn.Module):
    """Convolution, batch norm, functional in-place ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        pad = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, pad, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """Four branches, one of them factored into 1x7 and 7x1, concatenated."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.branch1 = ConvBnRelu(inputs, width, 1)
        self.branch3 = nn.Sequential(ConvBnRelu(inputs, width // 2, 1), ConvBnRelu(width // 2, width, 3))
        self.branch7 = nn.Sequential(
            ConvBnRelu(inputs, width // 2, (1, 7)), ConvBnRelu(width // 2, width, (7, 1))
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvBnRelu(inputs, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.branch1(x), self.branch3(x), self.branch7(x), self.pool(x)), dim=1)


class GoogLeNet(nn.Module):
    """Szegedy et al., 2014 (arXiv:1409.4842), in small and without the auxiliary heads."""

    def __init__(self, *, classes: int = 10) -> None:
        super().__init__()
        self.stem = ConvBnRelu(3, 16, 7, 2)
        self.inception1 = Inception(16, 8)
        self.inception2 = Inception(32, 12)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, padding=1)
        x = F.avg_pool2d(self.inception1(x), kernel_size=2)
        x = self.inception2(x).mean(dim=[2, 3])
        return self.fc(self.dropout(x))
