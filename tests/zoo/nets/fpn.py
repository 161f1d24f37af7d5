"""Feature pyramid network (Lin et al., 2016, arXiv:1612.03144) over a small backbone."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn


class FPN(nn.Module):
    """Lateral 1x1 convolutions, upsampling to the finer map's size, a shared head; ordered-dict output."""

    def __init__(self, *, width: int = 16, outputs: int = 24) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.backbone = nn.ModuleDict()
        inputs = 3
        for level, channels in enumerate(widths):
            conv = nn.Conv2d(inputs, channels, 3, 2, 1)
            self.backbone[f"c{level + 2}"] = nn.Sequential(conv, nn.GroupNorm(4, channels), nn.SiLU())
            inputs = channels
        self.lateral = nn.ModuleList(nn.Conv2d(channels, outputs, 1) for channels in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(outputs, outputs, 3, padding=1) for _ in widths)
        self.head = nn.Sequential(
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, 5, 1)
        )

    def forward(self, x: Tensor) -> OrderedDict[str, Tensor]:
        features = []
        for stage in self.backbone.values():
            x = stage(x)
            features.append(x)
        merged = [self.lateral[-1](features[-1])]
        for index in range(len(features) - 2, -1, -1):
            lateral = self.lateral[index](features[index])
            merged.insert(0, lateral + F.interpolate(merged[0], size=lateral.shape[-2:], mode="nearest"))
        maps = OrderedDict()
        for index, (smooth, feature) in enumerate(zip(self.smooth, merged, strict=True)):
            maps[f"p{index + 2}"] = self.head(smooth(feature))
        maps["pool"] = F.max_pool2d(maps[f"p{len(merged) + 1}"], 1, stride=2)
        return maps
