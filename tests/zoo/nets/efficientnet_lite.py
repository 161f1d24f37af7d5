"""EfficientNet-Lite0 with TensorFlow SAME padding; parameter names as in the public PyTorch checkpoints.

Source: Tan and Le, 2019 (arXiv:1905.11946); the Lite variant drops squeeze-and-excite and uses ReLU6.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

# kernel, stride, inputs, outputs
BLOCKS = (
    (3, 1, 32, 16),
    (3, 2, 16, 24),
    (3, 1, 24, 24),
    (5, 2, 24, 40),
    (5, 1, 40, 40),
    (3, 2, 40, 80),
    (3, 1, 80, 80),
    (3, 1, 80, 80),
    (5, 1, 80, 112),
    (5, 1, 112, 112),
    (5, 1, 112, 112),
    (5, 2, 112, 192),
    (5, 1, 192, 192),
    (5, 1, 192, 192),
    (5, 1, 192, 192),
    (3, 1, 192, 320),
)


class SameConv2d(nn.Conv2d):
    """Convolution padded as TensorFlow does: the output is ceil(input / stride), odd pads at the far side."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for size, kernel, stride in zip(
            x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Block(nn.Module):
    """Inverted residual: expand (absent where the ratio is 1), depthwise, project."""

    def __init__(self, kernel: int, stride: int, inputs: int, outputs: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.expands = expand != 1
        if self.expands:
            self._expand_conv = SameConv2d(inputs, hidden, 1)
            self._bn0 = nn.BatchNorm2d(hidden, eps=1e-3)
        self._depthwise_conv = SameConv2d(hidden, hidden, kernel, stride, groups=hidden)
        self._bn1 = nn.BatchNorm2d(hidden, eps=1e-3)
        self._project_conv = SameConv2d(hidden, outputs, 1)
        self._bn2 = nn.BatchNorm2d(outputs, eps=1e-3)
        self._act = nn.ReLU6()
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = self._act(self._bn0(self._expand_conv(x))) if self.expands else x
        out = self._act(self._bn1(self._depthwise_conv(out)))
        out = self._bn2(self._project_conv(out))
        return out + x if self.residual else out


class EfficientNetLite0(nn.Module):
    """4,652,008 parameters at full size; ``depth`` keeps only the first so many blocks."""

    def __init__(self, *, classes: int = 1000, depth: int = len(BLOCKS), head: int = 1280) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, 32, 3, 2)
        self._bn0 = nn.BatchNorm2d(32, eps=1e-3)
        self._blocks = nn.ModuleList(
            [Block(*row, expand=1 if index == 0 else 6) for index, row in enumerate(BLOCKS[:depth])]
        )
        self._conv_head = SameConv2d(BLOCKS[depth - 1][3], head, 1)
        self._bn1 = nn.BatchNorm2d(head, eps=1e-3)
        self._fc = nn.Linear(head, classes)
        self._act = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self._act(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = self._act(self._bn1(self._conv_head(x)))
        return self._fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
