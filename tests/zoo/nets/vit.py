"""Vision transformer (Dosovitskiy et al., 2020, arXiv:2010.11929) with three spellings of attention."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

AttentionKind = Literal["module", "sdpa", "matmul"]


class Attention(nn.Module):
    """One projection to queries, keys and values; ``fused`` uses scaled_dot_product_attention."""

    def __init__(self, dim: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.scale = heads, fused, (dim // heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        if self.fused:
            out = F.scaled_dot_product_attention(query, key, value)
        else:
            out = ((query * self.scale) @ key.transpose(-2, -1)).softmax(dim=-1) @ value
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, dim))


class ModuleAttention(nn.Module):
    """``nn.MultiheadAttention``, whose eval mode has a fused path of its own."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, dim: int, heads: int, kind: AttentionKind, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = (
            ModuleAttention(dim, heads) if kind == "module" else Attention(dim, heads, fused=kind == "sdpa")
        )
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attn(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    """Class token, learned positions, pre-norm blocks; by default ViT-Small/16 (22,050,664 parameters)."""

    def __init__(
        self,
        *,
        size: int = 224,
        patch: int = 16,
        dim: int = 384,
        depth: int = 12,
        heads: int = 6,
        classes: int = 1000,
        attention: AttentionKind = "sdpa",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*(Block(dim, heads, attention, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])
