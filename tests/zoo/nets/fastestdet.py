"""FastestDet: a ShuffleNetV2-like detector with one output map; parameter names of its public checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, depthwise: bool = False, relu: bool = True
) -> list[nn.Module]:
    groups = inputs if depthwise else 1
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), *([nn.ReLU(inplace=True)] if relu else [])]


class ShuffleBlock(nn.Module):
    """Even channels pass and odd ones are convolved; with stride 2 both branches see all channels."""

    def __init__(self, inputs: int, outputs: int, hidden: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.branch_main = nn.Sequential(
            *_conv_bn(inputs, hidden, 1),
            *_conv_bn(hidden, hidden, 3, stride, depthwise=True, relu=False),
            *_conv_bn(hidden, outputs - inputs, 1),
        )
        if stride == 2:
            depthwise = _conv_bn(inputs, inputs, 3, 2, depthwise=True, relu=False)
            self.branch_proj = nn.Sequential(*depthwise, *_conv_bn(inputs, inputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2:
            return torch.cat((self.branch_proj(x), self.branch_main(x)), 1)
        return torch.cat((x[:, 0::2], self.branch_main(x[:, 1::2])), 1)


class Backbone(nn.Module):
    """Maps at 1/8, 1/16 and 1/32 of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.first_conv = nn.Sequential(*_conv_bn(3, 24, 3, 2))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 24
        for stage, outputs, depth in ((2, 48, 4), (3, 96, 8), (4, 192, 4)):
            half = outputs // 2
            blocks = [
                ShuffleBlock(channels, outputs, half, 2),
                *(ShuffleBlock(half, outputs, half, 1) for _ in range(depth - 1)),
            ]
            self.add_module(f"stage{stage}", nn.Sequential(*blocks))
            channels = outputs

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.maxpool(self.first_conv(x))
        eighth = self.stage2(x)
        sixteenth = self.stage3(eighth)
        return eighth, sixteenth, self.stage4(sixteenth)


class Conv1x1(nn.Module):
    """Pointwise convolution, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1x1 = nn.Sequential(*_conv_bn(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv1x1(x)


class Head(nn.Module):
    """Depthwise 5x5 and a pointwise convolution to the outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv5x5 = nn.Sequential(
            *_conv_bn(inputs, inputs, 5, depthwise=True), *_conv_bn(inputs, outputs, 1, relu=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv5x5(x)


class SPP(nn.Module):
    """Three stacks of depthwise 5x5 convolutions of growing depth, joined and added back."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.Conv1x1 = Conv1x1(inputs, outputs)
        for depth in (1, 2, 3):
            layers = [layer for _ in range(depth) for layer in _conv_bn(outputs, outputs, 5, depthwise=True)]
            self.add_module(f"S{depth}", nn.Sequential(*layers))
        self.output = nn.Sequential(*_conv_bn(3 * outputs, outputs, 1, relu=False))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.Conv1x1(x)
        joined = torch.cat((self.S1(x), self.S2(x), self.S3(x)), dim=1)
        return self.relu(x + self.output(joined))


class DetectHead(nn.Module):
    """Objectness, box and class maps."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1x1 = Conv1x1(channels, channels)
        self.obj_layers = Head(channels, 1)
        self.reg_layers = Head(channels, 4)
        self.cls_layers = Head(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1x1(x)
        return torch.cat(
            (self.obj_layers(x).sigmoid(), self.reg_layers(x), self.cls_layers(x).softmax(dim=1)), dim=1
        )


class FastestDet(nn.Module):
    """244,490 parameters with 80 classes; output [batch, 5 + classes, height / 16, width / 16]."""

    def __init__(self, *, classes: int = 80) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.avg_pool = nn.AvgPool2d(3, 2, 1)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.SPP = SPP(48 + 96 + 192, 96)
        self.detect_head = DetectHead(96, classes)

    def forward(self, x: Tensor) -> Tensor:
        eighth, sixteenth, thirtysecond = self.backbone(x)
        joined = torch.cat((self.avg_pool(eighth), sixteenth, self.upsample(thirtysecond)), dim=1)
        return self.detect_head(self.SPP(joined))
