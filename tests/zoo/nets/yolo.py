"""A YOLOv8-like detector: C2f blocks with chunks, SPPF, upsample-and-concat neck, list of maps per scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Conv(nn.Module):
    """Convolution, batch norm, SiLU; one activation module shared by every instance."""

    default_act = nn.SiLU(inplace=True)

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = self.default_act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3x3 convolutions with a residual."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels, 3), Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x)) if self.shortcut else self.cv2(self.cv1(x))


class C2f(nn.Module):
    """Split in two, run one half through bottlenecks, concatenate every intermediate."""

    def __init__(self, inputs: int, outputs: int, depth: int = 1, shortcut: bool = False) -> None:
        super().__init__()
        self.hidden = outputs // 2
        self.cv1 = Conv(inputs, 2 * self.hidden)
        self.cv2 = Conv((2 + depth) * self.hidden, outputs)
        self.m = nn.ModuleList(Bottleneck(self.hidden, shortcut) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        parts.extend(block(parts[-1]) for block in self.m)
        return self.cv2(torch.cat(parts, 1))


class SPPF(nn.Module):
    """The same max pool applied three times, all stages concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels // 2), Conv(channels * 2, channels)
        self.m = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.cv1(x)]
        parts.extend(self.m(parts[-1]) for _ in range(3))
        return self.cv2(torch.cat(parts, 1))


class Detect(nn.Module):
    """Per scale a map [batch, 4 * bins + classes, h, w]; in eval mode also all decoded boxes."""

    def __init__(self, channels: list[int], classes: int, bins: int = 8) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.boxes = nn.ModuleList(
            nn.Sequential(Conv(c, 16, 3), nn.Conv2d(16, 4 * bins, 1)) for c in channels
        )
        self.labels = nn.ModuleList(
            nn.Sequential(Conv(c, 16, 3), nn.Conv2d(16, classes, 1)) for c in channels
        )
        self.register_buffer("project", torch.arange(bins, dtype=torch.float32), persistent=False)

    def forward(self, features: list[Tensor]) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        maps = [torch.cat((b(x), c(x)), 1) for b, c, x in zip(self.boxes, self.labels, features, strict=True)]
        if self.training:
            return maps
        flat = torch.cat([m.view(m.shape[0], 4 * self.bins + self.classes, -1) for m in maps], 2)
        box, label = flat.split((4 * self.bins, self.classes), 1)
        batch, _, anchors = box.shape
        distances = box.view(batch, 4, self.bins, anchors).softmax(2).transpose(2, 3) @ self.project
        return torch.cat((distances, label.sigmoid()), 1), maps


class Yolo(nn.Module):
    """Two-scale detector; image sides must be multiples of 16."""

    def __init__(self, *, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            Conv(3, width, 3, 2), Conv(width, 2 * width, 3, 2), C2f(2 * width, 2 * width, 1, True)
        )
        self.stage3 = nn.Sequential(Conv(2 * width, 4 * width, 3, 2), C2f(4 * width, 4 * width, 2, True))
        self.stage4 = nn.Sequential(
            Conv(4 * width, 8 * width, 3, 2), C2f(8 * width, 8 * width, 1, True), SPPF(8 * width)
        )
        self.up = nn.Upsample(None, 2, "nearest")
        self.fuse_up = C2f(12 * width, 4 * width)
        self.down = Conv(4 * width, 4 * width, 3, 2)
        self.fuse_down = C2f(12 * width, 8 * width)
        self.detect = Detect([4 * width, 8 * width], classes)

    def forward(self, x: Tensor) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        fine = self.stage3(self.stem(x))
        coarse = self.stage4(fine)
        fine = self.fuse_up(torch.cat([self.up(coarse), fine], 1))
        coarse = self.fuse_down(torch.cat([self.down(fine), coarse], 1))
        return self.detect([fine, coarse])
