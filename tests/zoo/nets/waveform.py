"""One-dimensional audio nets and a three-dimensional video net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AudioCNN(nn.Module):
    """M5-like net on raw samples (Dai et al., 2016, arXiv:1610.00087)."""

    def __init__(self, *, width: int = 16, classes: int = 6) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(1, width, 32, stride=8), nn.BatchNorm1d(width)
        self.conv2, self.bn2 = nn.Conv1d(width, width, 3), nn.BatchNorm1d(width)
        self.conv3, self.bn3 = nn.Conv1d(width, 2 * width, 3, bias=False), nn.BatchNorm1d(2 * width)
        self.pool = nn.MaxPool1d(2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        x = F.relu(self.bn3(self.conv3(x)))
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        return F.log_softmax(self.fc(x), dim=2)


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, residuals and summed skips (arXiv:1609.03499)."""

    def __init__(self, *, width: int = 8, levels: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.entry = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(depth))
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.skip = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(2 * width, levels, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        total: Tensor | float = 0.0
        for dilated, residual, skip in zip(self.dilated, self.residual, self.skip, strict=True):
            both = dilated(F.pad(x, (dilated.dilation[0], 0)))
            gated = torch.tanh(both[:, : both.size(1) // 2]) * torch.sigmoid(both[:, both.size(1) // 2 :])
            total = total + skip(gated)
            x = x + residual(gated)
        return self.head(total)


class SpectrogramNet(nn.Module):
    """Short-time Fourier transform inside the model, then 2-d convolutions."""

    def __init__(self, *, size: int = 64, classes: int = 5) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size))
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.fc = nn.Linear(8, classes)

    def forward(self, wave: Tensor) -> Tensor:
        spectrum = torch.stft(wave, self.size, self.size // 2, window=self.window, return_complex=True)
        power = torch.log1p(spectrum.abs().pow(2)).unsqueeze(1)
        return self.fc(self.conv(power).mean(dim=(-2, -1)))


class VideoNet(nn.Module):
    """C3D-like: 3-d convolutions, factored into space and time in the second block."""

    def __init__(self, *, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, width, 3, (1, 2, 2), 1, bias=False), nn.BatchNorm3d(width), nn.ReLU(inplace=True)
        )
        self.space = nn.Conv3d(width, 2 * width, (1, 3, 3), padding=(0, 1, 1))
        self.time = nn.Conv3d(2 * width, 2 * width, (3, 1, 1), padding=(1, 0, 0))
        self.pool = nn.MaxPool3d(2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, clip: Tensor) -> Tensor:
        x = self.pool(self.stem(clip))
        x = F.relu(self.time(F.relu(self.space(x))))
        return self.fc(F.adaptive_avg_pool3d(x, 1).flatten(1))
