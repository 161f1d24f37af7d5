"""MobileNetV2 (arXiv:1801.04381) and a MobileNetV3-like net with squeeze-and-excite (arXiv:1905.02244)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn


def round_channels(value: float, divisor: int = 8) -> int:
    """The multiple of ``divisor`` nearest to ``value``, never more than 10 % below it."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    act: type[nn.Module] | None = nn.ReLU6,
) -> nn.Sequential:
    """Convolution without bias, batch norm and, unless None, an activation in place."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([] if act is None else [act(inplace=True)]))


class InvertedResidual(nn.Module):
    """Expand 1x1, depthwise 3x3, project 1x1 without activation; add the input where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = [] if expand == 1 else [conv_bn(inputs, hidden, 1)]
        layers += [conv_bn(hidden, hidden, 3, stride, groups=hidden), conv_bn(hidden, outputs, 1, act=None)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """3,504,872 parameters at ``width=1.0`` and 1000 classes."""

    # expansion, channels, blocks, stride of the first block
    STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, *, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels = round_channels(32 * width)
        layers: list[nn.Module] = [conv_bn(3, channels, 3, 2)]
        for expand, base, blocks, stride in self.STAGES:
            outputs = round_channels(base * width)
            for index in range(blocks):
                layers.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expand))
                channels = outputs
        last = round_channels(1280 * max(1.0, width)) if width >= 1 else round_channels(1280 * width)
        layers.append(conv_bn(channels, last, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class SqueezeExcite(nn.Module):
    """Channel gate from the global average."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = round_channels(channels / 4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, hidden, 1)
        self.relu = nn.ReLU(inplace=True)
        self.expand = nn.Conv2d(hidden, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.relu(self.reduce(self.pool(x)))))


class BlockV3(NamedTuple):
    """One row of the MobileNetV3 table."""

    kernel: int
    hidden: int
    outputs: int
    squeeze: bool
    act: type[nn.Module]
    stride: int


class InvertedResidualV3(nn.Module):
    """Inverted residual with an optional squeeze-and-excite between depthwise and projection."""

    def __init__(self, inputs: int, row: BlockV3) -> None:
        super().__init__()
        layers: list[nn.Module] = (
            [] if row.hidden == inputs else [conv_bn(inputs, row.hidden, 1, act=row.act)]
        )
        layers.append(conv_bn(row.hidden, row.hidden, row.kernel, row.stride, groups=row.hidden, act=row.act))
        if row.squeeze:
            layers.append(SqueezeExcite(row.hidden))
        layers.append(conv_bn(row.hidden, row.outputs, 1, act=None))
        self.block = nn.Sequential(*layers)
        self.residual = row.stride == 1 and inputs == row.outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x)
        if self.residual:
            out += x
        return out


class MobileNetV3Small(nn.Module):
    """The first rows of MobileNetV3-Small; ``REST`` are the others, for a head with ``hidden=1024``."""

    ROWS = (
        BlockV3(3, 16, 16, True, nn.ReLU, 2),
        BlockV3(3, 72, 24, False, nn.ReLU, 2),
        BlockV3(3, 88, 24, False, nn.ReLU, 1),
        BlockV3(5, 96, 40, True, nn.Hardswish, 2),
        BlockV3(5, 240, 40, True, nn.Hardswish, 1),
    )
    REST = (
        BlockV3(5, 240, 40, True, nn.Hardswish, 1),
        BlockV3(5, 120, 48, True, nn.Hardswish, 1),
        BlockV3(5, 144, 48, True, nn.Hardswish, 1),
        BlockV3(5, 288, 96, True, nn.Hardswish, 2),
        BlockV3(5, 576, 96, True, nn.Hardswish, 1),
        BlockV3(5, 576, 96, True, nn.Hardswish, 1),
    )

    def __init__(self, *, classes: int = 10, rows: Sequence[BlockV3] = ROWS, hidden: int = 64) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16, 3, 2, act=nn.Hardswish)
        inputs = (16, *(row.outputs for row in rows))
        self.blocks = nn.Sequential(
            *(InvertedResidualV3(c, row) for c, row in zip(inputs, rows, strict=False))
        )
        self.head = conv_bn(inputs[-1], 6 * inputs[-1], 1, act=nn.Hardswish)
        self.classifier = nn.Sequential(
            nn.Linear(6 * inputs[-1], hidden),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.blocks(self.stem(x)))
        return self.classifier(nn.functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))
