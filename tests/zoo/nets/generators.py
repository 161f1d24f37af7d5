"""Nets that make images bigger: super-resolution, autoencoder, GAN generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PixelShuffleSR(nn.Module):
    """Super-resolution by sub-pixel convolution (Shi et al., 2016, arXiv:1609.05158) over a bicubic skip."""

    def __init__(self, *, scale: int = 2, width: int = 16) -> None:
        super().__init__()
        self.scale = scale
        self.conv1 = nn.Conv2d(1, width, 5, 1, 2)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, padding_mode="reflect")
        self.conv3 = nn.Conv2d(width, scale**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(scale)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.interpolate(x, scale_factor=self.scale, mode="bicubic", align_corners=False)
        x = torch.tanh(self.conv2(F.leaky_relu(self.conv1(x), 0.2)))
        return skip + self.pixel_shuffle(self.conv3(x))


class ConvAutoencoder(nn.Module):
    """Strided encoder and a transposed-convolution decoder with output padding; returns image and code."""

    def __init__(self, *, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.ELU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.InstanceNorm2d(2 * width),
            nn.ELU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 3, 2, 1, output_padding=1),
            nn.BatchNorm2d(width),
            nn.ELU(),
            nn.ConvTranspose2d(width, 3, 3, 2, 1, output_padding=1, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.encoder(x)
        return self.decoder(code), code


class GanGenerator(nn.Module):
    """DCGAN generator (Radford et al., 2015, arXiv:1511.06434), conditioned on a class label."""

    def __init__(self, *, latent: int = 16, width: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.label = nn.Embedding(classes, latent)
        self.main = nn.Sequential(
            nn.ConvTranspose2d(latent, 4 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, 3, 4, 2, 1, groups=1),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        return self.main((noise * self.label(label))[:, :, None, None])
