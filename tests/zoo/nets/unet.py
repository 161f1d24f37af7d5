"""U-Net (Ronneberger et al., 2015, arXiv:1505.04597) with padded convolutions."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _double_conv(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [
            nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """31,037,698 parameters at ``width=64``, ``depth=4``, 2 classes, with transposed convolutions.

    With ``bilinear`` the decoder upsamples instead. Odd sizes are padded on the way up.
    """

    def __init__(self, *, width: int = 64, depth: int = 4, classes: int = 2, bilinear: bool = False) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.stem = _double_conv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(_double_conv(a, b) for a, b in pairwise(widths))
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for narrow, wide in reversed(list(pairwise(widths))):
            if bilinear:
                upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
                self.up.append(nn.Sequential(upsample, nn.Conv2d(wide, narrow, 1)))
            else:
                self.up.append(nn.ConvTranspose2d(wide, narrow, 2, 2))
            self.merge.append(_double_conv(2 * narrow, narrow))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.stem(x)]
        for down in self.down:
            skips.append(down(self.pool(skips[-1])))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x, skip = up(x), skips.pop()
            rows, columns = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
            x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = merge(torch.cat([skip, x], dim=1))
        return self.head(x)
