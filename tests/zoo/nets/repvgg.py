"""RepVGG in its training form (Ding et al., 2021, arXiv:2101.03697)."""

from __future__ import annotations

from torch import Tensor, nn


class RepVGGBlock(nn.Module):
    """Training form of RepVGG: 3x3, 1x1 and identity branches, each with batch norm, summed."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.dense, self.dense_bn = (
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.point, self.point_bn = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        self.identity_bn = nn.BatchNorm2d(inputs) if stride == 1 and inputs == outputs else None
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        identity = 0 if self.identity_bn is None else self.identity_bn(x)
        return self.act(self.dense_bn(self.dense(x)) + self.point_bn(self.point(x)) + identity)


class RepVGG(nn.Module):
    """Ding et al., 2021 (arXiv:2101.03697), in small."""

    def __init__(self, *, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stage0 = RepVGGBlock(3, width, 2)
        self.stage1 = nn.Sequential(RepVGGBlock(width, width, 1), RepVGGBlock(width, 2 * width, 2))
        self.stage2 = nn.Sequential(RepVGGBlock(2 * width, 2 * width, 1))
        self.gap = nn.AdaptiveAvgPool2d(output_size=1)
        self.linear = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gap(self.stage2(self.stage1(self.stage0(x))))
        return self.linear(x.view(x.size(0), -1))
