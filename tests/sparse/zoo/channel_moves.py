"""Convolutional structures that split, shuffle, reshape or reduce channels between their layers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.sparse.zoo.entry import block, conv, parameter, pooled, structure

IMAGE = (2, 3, 8, 8)


@structure(
    lambda: {
        "cv1": block(3, 16, 1),
        "m1": block(8, 8),
        "m2": block(8, 8),
        "cv2": block(32, 12, 1),
        "head": nn.Linear(12, 5),
    },
    IMAGE,
)
def c2f_chunk(m: Any, x: Tensor) -> Tensor:
    parts = list(m.cv1(x).chunk(2, 1))
    for step in (m.m1, m.m2):
        parts.append(parts[-1] + step(parts[-1]))
    return m.head(pooled(m.cv2(torch.cat(parts, 1))))


@structure(
    lambda: {"a": block(3, 16), "b": conv(6, 8), "c": conv(10, 8), "head": nn.Linear(8, 5)},
    IMAGE,
    module=False,
)
def uneven_split(m: Any, x: Tensor) -> Tensor:
    first, second = torch.split(m.a(x), [6, 10], 1)
    return m.head(pooled(m.b(first) + m.c(second)))


@structure(
    lambda: {"a": block(3, 16), "b": conv(4, 8), "c": conv(12, 8), "head": nn.Linear(8, 5)},
    IMAGE,
    module=False,
)
def slices(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head(pooled(m.b(x[:, :4]) * m.c(x[:, 4:])))


@structure(lambda: {"a": block(3, 16), "b": conv(8, 8), "c": block(16, 8), "head": nn.Linear(8, 5)}, IMAGE)
def shuffle_by_view(m: Any, x: Tensor) -> Tensor:
    left, right = m.a(x).chunk(2, 1)
    x = torch.cat([left, m.b(right)], 1)
    n, c, h, w = x.shape
    x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
    return m.head(pooled(m.c(x)))


@structure(
    lambda: {
        "a": block(3, 16),
        "g": block(16, 16, groups=4),
        "shuffle": nn.ChannelShuffle(4),
        "c": block(16, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def shuffle_by_layer(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.c(m.shuffle(m.g(m.a(x))))))


@structure(lambda: {"a": block(3, 8), "b": conv(8, 32), "c": block(8, 8), "head": nn.Linear(8, 5)}, IMAGE)
def pixel_shuffle(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.c(F.pixel_shuffle(m.b(m.a(x)), 2))))


@structure(lambda: {"a": block(3, 8), "c": block(32, 8), "d": block(32, 8), "head": nn.Linear(8, 5)}, IMAGE)
def space_to_depth(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    corners = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
    return m.head(pooled(m.c(torch.cat(corners, 1)) + m.d(F.pixel_unshuffle(x, 2))))


@structure(
    lambda: {"a": block(3, 8), "b": block(8, 16, stride=2), "c": conv(16, 16), "head": nn.Linear(16, 5)},
    IMAGE,
    module=False,
)
def option_a_shortcut(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 4, 4)) + m.c(m.b(x))
    return m.head(pooled(F.relu(x)))


@structure(lambda: {"a": block(3, 8), "b": conv(8, 16), "head": nn.Linear(16, 5)}, IMAGE, module=False)
def shortcut_of_zeros(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    zeros = torch.zeros(x.size(0), 8, x.size(2), x.size(3), dtype=x.dtype)
    return m.head(pooled(torch.cat([x, zeros], 1) + m.b(x)))


@structure(lambda: {"a": conv(3, 16), "b": conv(8, 12), "c": conv(6, 8), "head": nn.Linear(8, 5)}, IMAGE)
def glu_and_chunk(m: Any, x: Tensor) -> Tensor:
    x = F.glu(m.a(x), 1)
    left, right = m.b(x).chunk(2, 1)
    return m.head(pooled(m.c(left * torch.tanh(right))))


@structure(
    lambda: {
        "fc": nn.Linear(6, 8 * 16),
        "a": nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1),
        "n": nn.BatchNorm2d(6),
        "head": nn.ConvTranspose2d(6, 3, 3),
    },
    (2, 6),
    module=False,
)
def linear_view_transposed_conv(m: Any, x: Tensor) -> Tensor:
    x = m.fc(x).view(-1, 8, 4, 4)
    return m.head(F.leaky_relu(m.n(m.a(x)), 0.2))


@structure(
    lambda: {"a": block(3, 8), "mix": conv(1, 1, 7), "b": conv(8, 8), "head": nn.Linear(8, 5)},
    IMAGE,
    module=False,
)
def mean_over_channels(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head(pooled(m.b(x * torch.sigmoid(m.mix(x.mean(1, keepdim=True))))))


@structure(lambda: {"a": block(3, 8), "b": block(8, 8), "head": nn.Linear(8, 5)}, IMAGE, frozen={"a": "amax"})
def max_over_channels(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head(pooled(m.b(x * torch.sigmoid(x.amax(1, keepdim=True)))))


@structure(
    lambda: {
        "a": block(3, 8),
        "eca": nn.Conv1d(1, 1, 3, padding=1, bias=False),
        "b": block(8, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
    frozen={"a": "conv1d"},
)
def conv_along_channels(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    gate = m.eca(F.adaptive_avg_pool2d(x, 1).squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
    return m.head(pooled(m.b(x * gate.sigmoid())))


@structure(
    lambda: {"a": conv(3, 8), "b": conv(11, 8), "aux": nn.Linear(8, 4), "head": nn.Linear(8, 5)},
    IMAGE,
    outputs=("head", "aux"),
)
def input_joined_and_two_outputs(m: Any, x: Tensor) -> dict[str, Tensor]:
    y = F.relu(m.a(x))
    return {"main": m.head(pooled(m.b(torch.cat([x, y], 1)))), "aux": m.aux(pooled(y))}


@structure(lambda: {"a": block(3, 8), "b": conv(72, 8, 1), "head": nn.Linear(8, 5)}, IMAGE)
def unfold_into_conv(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    n, _, h, w = x.shape
    return m.head(pooled(m.b(F.unfold(x, 3, padding=1).view(n, -1, h, w))))


@structure(
    lambda: {
        "a": block(3, 8),
        "b": block(3, 16),
        "c": block(24, 24, groups=3),
        "d": conv(32, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
    module=False,
)
def nested_concat_and_shuffle(m: Any, x: Tensor) -> Tensor:
    first = m.a(x)
    x = torch.cat([first, m.b(x)], 1)
    n, c, h, w = x.shape
    x = m.c(x).reshape(n, 3, 8, h, w).transpose(1, 2).reshape(n, c, h, w)
    return m.head(pooled(m.d(torch.cat([x, first], 1))))


@structure(
    lambda: {
        "a": block(3, 8),
        "q": conv(8, 4, 1),
        "k": conv(8, 4, 1),
        "v": conv(8, 8, 1),
        "gamma": parameter(1),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def attention_over_pixels(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    b, c, h, w = x.shape
    q, k, v = (layer(x).view(b, -1, h * w) for layer in (m.q, m.k, m.v))
    weights = torch.bmm(q.permute(0, 2, 1), k).softmax(-1)
    return m.head(pooled(m.gamma * torch.bmm(v, weights.permute(0, 2, 1)).view(b, c, h, w) + x))
