"""MLP-Mixer (Tolstikhin et al., 2021, arXiv:2105.01601)."""

from __future__ import annotations

from torch import Tensor, nn


class MixerBlock(nn.Module):
    """An MLP across tokens, then one across channels."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channel_mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class MLPMixer(nn.Module):
    """Patches, mixer blocks, mean over tokens."""

    def __init__(
        self, *, size: int = 32, patch: int = 8, dim: int = 32, depth: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock((size // patch) ** 2, dim) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).permute(0, 2, 1)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))
