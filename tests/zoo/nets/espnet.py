"""ESPNet (Mehta et al., 2018, arXiv:1803.06815) with the parameter names of the public checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class C(nn.Module):
    """A convolution without bias, padded to keep the size at stride 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        pad = kernel // 2 * dilation
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, pad, dilation, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class BR(nn.Module):
    """Batch norm and PReLU with one slope per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels, eps=1e-3)
        self.act = nn.PReLU(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(x))


class CBR(nn.Module):
    """Convolution, batch norm, PReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)
        self.act = nn.PReLU(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Pyramid(nn.Module):
    """Reduce, convolve at five dilations, and concatenate the running sums."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        narrow = outputs // 5
        self.c1 = C(inputs, narrow, kernel, stride)
        self.d1 = C(narrow, outputs - 4 * narrow, 3)
        self.d2 = C(narrow, narrow, 3, dilation=2)
        self.d4 = C(narrow, narrow, 3, dilation=4)
        self.d8 = C(narrow, narrow, 3, dilation=8)
        self.d16 = C(narrow, narrow, 3, dilation=16)

    def merged(self, x: Tensor) -> Tensor:
        """The five branches with hierarchical sums, concatenated."""
        reduced = self.c1(x)
        add1 = self.d2(reduced)
        add2 = add1 + self.d4(reduced)
        add3 = add2 + self.d8(reduced)
        add4 = add3 + self.d16(reduced)
        return torch.cat([self.d1(reduced), add1, add2, add3, add4], 1)


class Down(Pyramid):
    """Pyramid that halves the map."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, kernel=3, stride=2)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)
        self.act = nn.PReLU(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.merged(x)))


class ESP(Pyramid):
    """Pyramid that keeps the map, with an optional residual."""

    def __init__(self, inputs: int, outputs: int, residual: bool = True) -> None:
        super().__init__(inputs, outputs, kernel=1, stride=1)
        self.bn = BR(outputs)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        merged = self.merged(x)
        return self.bn(merged + x if self.residual else merged)


class Encoder(nn.Module):
    """ESPNet-C: three scales, with the shrunken image joined at the first two."""

    def __init__(self, classes: int, p: int, q: int) -> None:
        super().__init__()
        self.level1 = CBR(3, 16, 3, 2)
        self.b1 = BR(16 + 3)
        self.level2_0 = Down(16 + 3, 64)
        self.level2 = nn.ModuleList(ESP(64, 64) for _ in range(p))
        self.b2 = BR(128 + 3)
        self.level3_0 = Down(128 + 3, 128)
        self.level3 = nn.ModuleList(ESP(128, 128) for _ in range(q))
        self.b3 = BR(256)
        self.classifier = C(256, classes, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = F.avg_pool2d(image, 3, 2, 1)
        quarter = F.avg_pool2d(half, 3, 2, 1)
        out0 = self.b1(torch.cat([self.level1(image), half], 1))
        first = out = self.level2_0(out0)
        for block in self.level2:
            out = block(out)
        out1 = self.b2(torch.cat([out, first, quarter], 1))
        first = out = self.level3_0(out1)
        for block in self.level3:
            out = block(out)
        return out0, out1, self.classifier(self.b3(torch.cat([first, out], 1)))


class ESPNet(nn.Module):
    """Encoder and light decoder: 354,517 parameters at full size. Image sides must be multiples of 8."""

    def __init__(self, *, classes: int = 12, p: int = 2, q: int = 8) -> None:
        super().__init__()
        self.encoder = Encoder(classes, p, q)
        self.level3_C = C(128 + 3, classes, 1)
        self.br = nn.BatchNorm2d(classes, eps=1e-3)
        self.conv = CBR(19 + classes, classes, 3)
        self.up_l3 = nn.Sequential(nn.ConvTranspose2d(classes, classes, 2, 2, bias=False))
        self.combine_l2_l3 = nn.Sequential(BR(2 * classes), ESP(2 * classes, classes, residual=False))
        self.up_l2 = nn.Sequential(nn.ConvTranspose2d(classes, classes, 2, 2, bias=False), BR(classes))
        self.classifier = nn.ConvTranspose2d(classes, classes, 2, 2, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        out0, out1, coarse = self.encoder(image)
        coarse = self.up_l3(self.br(coarse))
        middle = self.up_l2(self.combine_l2_l3(torch.cat([self.level3_C(out1), coarse], 1)))
        return self.classifier(self.conv(torch.cat([middle, out0], 1)))
