"""Linear, recurrent and attention structures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.sparse.zoo.entry import conv, parameter, structure

TOKENS = (2, 6, 16)


@structure(
    lambda: {
        "a": nn.Linear(16, 24),
        "b": nn.Linear(24, 12),
        "n": nn.BatchNorm1d(12),
        "head": nn.Linear(12, 5),
    },
    (4, 16),
)
def mlp(m: Any, x: Tensor) -> Tensor:
    return m.head(F.relu(m.n(m.b(F.dropout(F.relu(m.a(x)), training=m.training)))))


@structure(
    lambda: {
        "emb": nn.Embedding(20, 16),
        "n": nn.LayerNorm(16),
        "gate": nn.Linear(16, 24),
        "up": nn.Linear(16, 24),
        "down": nn.Linear(24, 16),
        "head": nn.Linear(16, 5),
    },
    (2, 6),
    integers=20,
)
def embedding_and_gated_mlp(m: Any, ids: Tensor) -> Tensor:
    x = m.emb(ids)
    y = m.n(x)
    return m.head(x + m.down(F.silu(m.gate(y)) * m.up(y)))


def _tied() -> dict[str, Any]:
    parts = {"emb": nn.Embedding(20, 16), "a": nn.Linear(16, 16), "head": nn.Linear(16, 20, bias=False)}
    parts["head"].weight = parts["emb"].weight
    return parts


@structure(_tied, (2, 6), integers=20, outputs=(), frozen={"head": "looks rows up"})
def tied_embedding(m: Any, ids: Tensor) -> Tensor:
    return m.head(F.gelu(m.a(m.emb(ids))))


def projections(queries: int = 16, keys: int = 16) -> dict[str, Any]:
    """Of one attention, with these widths of the queries, and of keys and values."""
    return {
        "stem": nn.Linear(8, 16),
        "q": nn.Linear(16, queries),
        "k": nn.Linear(16, keys),
        "v": nn.Linear(16, keys),
        "o": nn.Linear(queries, 16),
        "head": nn.Linear(16, 5),
    }


def attention_parts() -> dict[str, Any]:
    return {**projections(), "n": nn.LayerNorm(16)}


@structure(attention_parts, (2, 6, 8), module=False)
def attention_by_matmul(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    b, t, _ = x.shape
    q, k, v = (layer(x).view(b, t, 4, 4).transpose(1, 2) for layer in (m.q, m.k, m.v))
    scores = (q @ k.transpose(-2, -1)) / 4**0.5
    y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1)
    return m.head(m.n(x + m.o(y)))


@structure(
    lambda: {
        "stem": nn.Linear(8, 16),
        "qkv": nn.Linear(16, 48),
        "o": nn.Linear(16, 16),
        "n": nn.LayerNorm(16),
        "up": nn.Linear(16, 32),
        "down": nn.Linear(32, 16),
        "head": nn.Linear(16, 5),
    },
    (2, 6, 8),
    module=False,
)
def fused_qkv(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    b, t, c = x.shape
    q, k, v = m.qkv(m.n(x)).reshape(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
    x = x + m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
    return m.head(x + m.down(F.gelu(m.up(x))))


@structure(
    lambda: {
        "stem": nn.Linear(8, 16),
        "mha": nn.MultiheadAttention(16, 4, batch_first=True),
        "n": nn.LayerNorm(16),
        "head": nn.Linear(16, 5),
    },
    (2, 6, 8),
)
def multihead_attention(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(m.n(x + m.mha(x, x, x, need_weights=False)[0]))


@structure(
    lambda: {
        "stem": nn.Linear(8, 16),
        "mha": nn.MultiheadAttention(16, 4),
        "n": nn.LayerNorm(16),
        "head": nn.Linear(16, 5),
    },
    (6, 2, 8),
    module=False,
    frozen={"mha.in_proj_weight": "mean"},
)
def multihead_attention_with_weights(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y, weights = m.mha(x, x, x)
    return m.head(m.n(x + y)) + weights.mean()


@structure(
    lambda: {
        "stem": nn.Linear(8, 16),
        "layer": nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        "head": nn.Linear(16, 5),
    },
    (2, 6, 8),
)
def transformer_encoder_layer(m: Any, x: Tensor) -> Tensor:
    return m.head(m.layer(m.stem(x)))


@structure(lambda: projections(32, 16), (2, 6, 8), module=False)
def grouped_query_attention(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    b, t, _ = x.shape
    q = m.q(x).view(b, t, 8, 4).transpose(1, 2)
    k, v = (layer(x).view(b, t, 4, 4).transpose(1, 2) for layer in (m.k, m.v))
    k, v = (y[:, :, None].expand(b, 4, 2, t, 4).reshape(b, 8, t, 4) for y in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m.head(x + m.o(y.transpose(1, 2).reshape(b, t, -1)))


@structure(lambda: projections(32, 16), (2, 6, 8), module=False)
def grouped_query_flag(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    q = m.q(x).unflatten(-1, (8, 4)).transpose(1, 2)
    k, v = (layer(x).unflatten(-1, (4, 4)).transpose(1, 2) for layer in (m.k, m.v))
    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return m.head(x + m.o(y.transpose(1, 2).flatten(2)))


@structure(lambda: projections(32, 8), (2, 6, 8), module=False)
def multi_query_attention(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    b, t, _ = x.shape
    q = m.q(x).view(b, t, 4, 8).transpose(1, 2)
    k, v = (layer(x).view(b, t, 1, 8).transpose(1, 2) for layer in (m.k, m.v))
    y = F.scaled_dot_product_attention(q, k.expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1))
    return m.head(x + m.o(y.transpose(1, 2).reshape(b, t, 32)))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


@structure(attention_parts, (2, 6, 8), module=False)
def rotary_attention(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    b, t, _ = x.shape
    angle = torch.arange(t, dtype=x.dtype)[:, None] / 10 ** torch.arange(2, dtype=x.dtype)
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    q, k, v = (layer(m.n(x)).view(b, t, 4, 4).transpose(1, 2) for layer in (m.q, m.k, m.v))
    y = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
    return m.head(x + m.o(y.transpose(1, 2).reshape(b, t, -1)))


@structure(
    lambda: {
        "wq": parameter(16, 4, 4),
        "wk": parameter(16, 4, 4),
        "wv": parameter(16, 4, 4),
        "wo": parameter(4, 4, 16),
        "stem": nn.Linear(8, 16),
        "head": nn.Linear(16, 5),
    },
    (2, 6, 8),
)
def attention_by_einsum(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    q, k, v = (torch.einsum("btc,chd->bhtd", x, w) for w in (m.wq, m.wk, m.wv))
    weights = torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1)
    return m.head(x + torch.einsum("bhts,bhsd,hdc->btc", weights, v, m.wo))


@structure(
    lambda: {
        "patch": conv(3, 16, 4, stride=4, padding=0),
        "cls": parameter(1, 1, 16),
        "pos": parameter(1, 5, 16),
        "qkv": nn.Linear(16, 48),
        "o": nn.Linear(16, 16),
        "scale": parameter(16),
        "n": nn.LayerNorm(16),
        "head": nn.Linear(16, 5),
    },
    (2, 3, 8, 8),
)
def vision_transformer(m: Any, x: Tensor) -> Tensor:
    x = m.patch(x).flatten(2).transpose(1, 2)
    x = torch.cat([m.cls.expand(x.shape[0], -1, -1), x], 1) + m.pos
    b, t, _ = x.shape
    q, k, v = m.qkv(m.n(x)).view(b, t, 3, -1, 4).transpose(1, 3).unbind(2)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1)
    return m.head((x + m.scale * m.o(y))[:, 0])


@structure(
    lambda: {
        "stem": nn.Linear(8, 16),
        "tokens_up": nn.Linear(6, 12),
        "tokens_down": nn.Linear(12, 6),
        "up": nn.Linear(16, 32),
        "down": nn.Linear(32, 16),
        "n": nn.LayerNorm(16),
        "head": nn.Linear(16, 5),
    },
    (2, 6, 8),
    frozen={"tokens_down": "tensor of fixed size"},
)
def mlp_mixer(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    x = x + m.tokens_down(F.gelu(m.tokens_up(m.n(x).transpose(1, 2)))).transpose(1, 2)
    return m.head((x + m.down(F.gelu(m.up(x)))).mean(1))


@structure(
    lambda: {
        "emb": nn.Embedding(20, 8),
        "rnn": nn.LSTM(8, 12, batch_first=True),
        "n": nn.LayerNorm(12),
        "head": nn.Linear(12, 5),
    },
    (2, 6),
    integers=20,
)
def lstm_norm_linear(m: Any, ids: Tensor) -> Tensor:
    return m.head(m.n(m.rnn(m.emb(ids))[0]))


@structure(
    lambda: {"a": nn.Linear(8, 8), "rnn": nn.LSTM(8, 12, 2, bidirectional=True), "head": nn.Linear(24, 5)},
    (6, 2, 8),
)
def stacked_bidirectional_lstm(m: Any, x: Tensor) -> Tensor:
    return m.head(m.rnn(m.a(x))[0])


@structure(
    lambda: {"a": nn.Linear(8, 8), "rnn": nn.GRU(8, 12, 2, batch_first=True), "head": nn.Linear(12, 5)},
    (2, 6, 8),
)
def gru_last_state(m: Any, x: Tensor) -> Tensor:
    return m.head(m.rnn(m.a(x))[1][-1])


@structure(
    lambda: {"rnn": nn.GRU(8, 12, bidirectional=True, batch_first=True), "head": nn.Linear(24, 5)}, (2, 6, 8)
)
def bidirectional_gru_states(m: Any, x: Tensor) -> Tensor:
    states = m.rnn(x)[1]
    return m.head(torch.cat([states[0], states[1]], -1))


@structure(
    lambda: {"rnn": nn.LSTM(8, 12, 2, proj_size=6), "head": nn.Linear(6, 5), "cell": nn.Linear(12, 5)},
    (6, 2, 8),
    outputs=("head", "cell"),
)
def projected_lstm(m: Any, x: Tensor) -> Tensor:
    out, (hidden, cell) = m.rnn(x)
    return m.head(out[-1] + hidden[-1]) + m.cell(cell[-1])


@structure(
    lambda: {"enc": nn.LSTM(8, 12), "dec": nn.LSTM(8, 12), "head": nn.Linear(12, 5)}, (6, 2, 8), (4, 2, 8)
)
def states_passed_on(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return m.head(m.dec(y, m.enc(x)[1])[0])


@structure(lambda: {"rnn": nn.GRU(8, 12), "head": nn.Linear(12, 5)}, (6, 2, 8), module=False)
def zero_initial_state(m: Any, x: Tensor) -> Tensor:
    return m.head(m.rnn(x, torch.zeros(1, x.size(1), 12, dtype=x.dtype))[0])


@structure(
    lambda: {"cell": nn.LSTMCell(8, 12), "rnn": nn.RNN(12, 10, batch_first=True), "head": nn.Linear(10, 5)},
    (2, 3, 8),
)
def lstm_cell_loop(m: Any, x: Tensor) -> Tensor:
    state, seen = None, []
    for step in x.unbind(1):
        state = m.cell(step, state)
        seen.append(state[0])
    return m.head(m.rnn(torch.stack(seen, 1))[0][:, -1])


@structure(
    lambda: {
        "a": nn.Linear(8, 16),
        "weight": parameter(16),
        "b": nn.Linear(16, 16),
        "head": nn.Linear(16, 5),
    },
    (2, 6, 8),
)
def written_out_rms_norm(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.weight
    return m.head(m.b(y))


@structure(
    lambda: {"a": nn.Linear(8, 16), "b": nn.Linear(8, 16), "n": nn.RMSNorm(16), "head": nn.Linear(16, 5)},
    (2, 8),
)
def normalized_and_rms_norm(m: Any, x: Tensor) -> Tensor:
    x = F.normalize(m.a(x), dim=-1) + F.normalize(m.b(x), dim=-1)
    return m.head(m.n(x))


@structure(lambda: {"a": nn.Linear(8, 16), "b": nn.Linear(8, 16), "scale": parameter(1)}, (4, 8), outputs=())
def cosine_of_two_towers(m: Any, x: Tensor) -> Tensor:
    left, right = F.normalize(m.a(x), dim=-1), F.normalize(m.b(x), dim=-1)
    return m.scale * (left @ right.t())


@structure(
    lambda: {
        "q": nn.Linear(6, 16),
        "k": nn.Linear(6, 12),
        "v": nn.Linear(6, 20),
        "att": nn.MultiheadAttention(16, 4, kdim=12, vdim=20, batch_first=True),
        "head": nn.Linear(16, 5),
    },
    (2, 5, 6),
    (2, 7, 6),
)
def attention_of_other_widths(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return m.head(m.att(m.q(x), m.k(y), m.v(y), need_weights=False)[0]).mean(1)


@structure(
    lambda: {
        "e": nn.Linear(6, 16),
        "d": nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True),
        "head": nn.Linear(16, 5),
    },
    (2, 5, 6),
    (2, 7, 6),
)
def transformer_decoder_layer(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return m.head(m.d(m.e(x), m.e(y))).mean(1)


@structure(
    lambda: {
        "q": nn.Linear(8, 32),
        "k": nn.Linear(8, 16),
        "v": nn.Linear(8, 16),
        "o": nn.Linear(32, 8),
        "head": nn.Linear(8, 5),
    },
    (2, 5, 8),
    module=False,
)
def grouped_query_by_expand(m: Any, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    q = m.q(x).view(b, n, 8, 4).transpose(1, 2)
    k, v = (layer(x).view(b, n, 4, 4).transpose(1, 2) for layer in (m.k, m.v))
    k, v = (each[:, :, None].expand(b, 4, 2, n, 4).reshape(b, 8, n, 4) for each in (k, v))
    return m.head(m.o((torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v).transpose(1, 2).flatten(2))).mean(
        1
    )


@structure(
    lambda: {
        "q": nn.Linear(8, 12),
        "kv": nn.Linear(8, 8),
        "o": nn.Linear(12, 8),
        "head": nn.Linear(8, 5),
    },
    (2, 5, 8),
    module=False,
)
def multi_query_fused(m: Any, x: Tensor) -> Tensor:
    b, n, _ = x.shape
    q = m.q(x).view(b, n, 3, 4).transpose(1, 2)
    k, v = m.kv(x).split(4, -1)
    y = F.scaled_dot_product_attention(q, k[:, None], v[:, None])
    return m.head(m.o(y.transpose(1, 2).reshape(b, n, 12))).mean(1)


@structure(
    lambda: {
        "r": nn.LSTM(6, 10, 2, batch_first=True, bidirectional=True, proj_size=4),
        "head": nn.Linear(32, 5),
    },
    (2, 5, 6),
)
def projected_stack_and_its_states(m: Any, x: Tensor) -> Tensor:
    y, (h, c) = m.r(x)
    return m.head(torch.cat([y[:, -1], h[-1], c[0], c[3]], 1))


@structure(
    lambda: {"one": nn.LSTMCell(6, 10), "two": nn.GRUCell(10, 8), "head": nn.Linear(8, 5)},
    (4, 2, 6),
    module=False,
)
def cell_on_cell(m: Any, x: Tensor) -> Tensor:
    h, c, g = x.new_zeros(2, 10), x.new_zeros(2, 10), x.new_zeros(2, 8)
    for step in range(4):
        h, c = m.one(x[step], (h, c))
        g = m.two(h, g)
    return m.head(g)
