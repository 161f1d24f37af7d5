"""Text nets of ``torch.nn`` parts: transformer modules, a causal SDPA decoder, bags and convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class EncoderClassifier(nn.Module):
    """``nn.TransformerEncoder`` with a padding mask computed from the tokens."""

    def __init__(
        self, *, vocabulary: int = 50, dim: int = 32, classes: int = 4, norm_first: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.position = nn.Embedding(64, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.1, batch_first=True, norm_first=norm_first)
        # The nested-tensor path drops padded positions: the shape of the output would depend on the data.
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.encoder(self.embedding(tokens) + self.position(places), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).to(x.dtype)
        return self.head((x * kept).sum(1) / kept.sum(1))


class Seq2SeqTransformer(nn.Module):
    """``nn.Transformer`` with the causal mask of its own static method."""

    def __init__(self, *, vocabulary: int = 40, dim: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.transformer = nn.Transformer(dim, 4, 1, 1, 48, dropout=0.1, batch_first=True)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
        out = self.transformer(
            self.embedding(source), self.embedding(target), tgt_mask=mask, tgt_is_causal=True
        )
        return self.head(out)


class CausalBlock(nn.Module):
    """Pre-norm causal attention with SDPA and a gated MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.query, self.key_value = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate_up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        head = dim // self.heads
        normed = self.norm1(x)
        query = self.query(normed).view(batch, length, self.heads, head).transpose(1, 2)
        # Half as many key/value heads as query heads.
        key, value = (
            self.key_value(normed).view(batch, length, self.heads, head).transpose(1, 2).chunk(2, dim=1)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class SdpaDecoder(nn.Module):
    """Causal language model: grouped-query SDPA, RMS norm, gated MLP, tied output weights."""

    def __init__(self, *, vocabulary: int = 50, dim: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.randn(64, dim) * 0.1)
        self.blocks = nn.ModuleList(CausalBlock(dim, 4) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BagClassifier(nn.Module):
    """Mean of word vectors through ``nn.EmbeddingBag``; words of text ``i`` start at ``offsets[i]``."""

    def __init__(self, *, vocabulary: int = 60, dim: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, dim, mode="mean")
        self.fc = nn.Linear(dim, classes)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return F.log_softmax(self.fc(self.bag(words, offsets)), dim=1)


class TextCNN(nn.Module):
    """Kim, 2014 (arXiv:1408.5882): parallel 1-d convolutions over word vectors, max over time."""

    def __init__(self, *, vocabulary: int = 60, dim: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 8, kernel) for kernel in (2, 3, 4))
        self.fc = nn.Linear(24, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        pooled = [F.relu(conv(x)).max(dim=2)[0] for conv in self.convs]
        return self.fc(F.dropout(torch.cat(pooled, 1), 0.5, self.training))
