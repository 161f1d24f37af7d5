"""Convolutional structures."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.sparse.zoo.entry import block, conv, parameter, pooled, structure

IMAGE = (2, 3, 8, 8)


@structure(lambda: {"a": conv(3, 8), "b": conv(8, 12), "head": nn.Linear(12 * 16, 5)}, IMAGE)
def conv_pool_flatten_linear(m: Any, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(m.a(x)), 2)
    return m.head(torch.flatten(F.relu(m.b(x)), 1))


@structure(lambda: {"a": conv(3, 8), "b": conv(8, 8), "head": nn.Linear(8, 5)}, IMAGE)
def bias_into_padded_conv(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(torch.sigmoid(m.b(torch.sigmoid(m.a(x))))))


@structure(lambda: {"a": block(3, 8), "b": block(8, 12), "head": nn.Linear(12, 5)}, IMAGE)
def conv_bn_relu(m: Any, x: Tensor) -> Tensor:
    return m.head(F.adaptive_avg_pool2d(m.b(m.a(x)), 1).flatten(1))


@structure(
    lambda: {
        "stem": block(3, 8),
        "a": block(8, 8),
        "b": conv(8, 8),
        "c": block(8, 16, stride=2),
        "d": conv(16, 16),
        "down": conv(8, 16, 1, stride=2),
        "head": nn.Linear(16, 5),
    },
    IMAGE,
)
def residual(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    x = F.relu(x + m.b(m.a(x)))
    return m.head(pooled(F.relu(m.d(m.c(x)) + m.down(x))))


@structure(
    lambda: {
        "stem": block(3, 16),
        "a": block(16, 8, 1),
        "b": block(8, 8),
        "c": conv(8, 16, 1),
        "head": nn.Linear(16, 5),
    },
    IMAGE,
)
def bottleneck(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    x = x + m.c(m.b(m.a(x)))
    return m.head(pooled(F.silu(x)))


@structure(
    lambda: {
        "stem": block(3, 8),
        "expand": block(8, 24, 1),
        "depthwise": block(24, 24, groups=24),
        "project": nn.Sequential(conv(24, 8, 1), nn.BatchNorm2d(8)),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def inverted_residual(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(pooled(x + m.project(m.depthwise(m.expand(x)))))


@structure(
    lambda: {"a": block(3, 8), "wide": conv(8, 24, groups=8), "b": conv(24, 12, 1), "head": nn.Linear(12, 5)},
    IMAGE,
)
def depthwise_multiplier(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.b(F.relu(m.wide(m.a(x))))))


@structure(
    lambda: {
        "stem": block(3, 16),
        "a": block(16, 32, 1),
        "grouped": block(32, 32, groups=4),
        "c": conv(32, 16, 1),
        "head": nn.Linear(16, 5),
    },
    IMAGE,
)
def grouped_conv(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(pooled(F.relu(x + m.c(m.grouped(m.a(x))))))


@structure(lambda: {"a": block(3, 16), "two": conv(20, 8, groups=2), "head": nn.Linear(8, 5)}, IMAGE)
def padded_groups(m: Any, x: Tensor) -> Tensor:
    x = F.pad(m.a(x), (0, 0, 0, 0, 0, 4))  # padding fills the second group: it has fewer channels to lose
    return m.head(pooled(F.relu(m.two(x))))


@structure(
    lambda: {
        "a": block(3, 16),
        "two": conv(16, 8, groups=2),
        "four": conv(16, 8, groups=4),
        "head": nn.Linear(16, 5),
    },
    IMAGE,
)
def nested_groups(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head(pooled(torch.cat([m.two(x), m.four(x)], 1)))


@structure(
    lambda: {
        "a": block(3, 16),
        "reduce": conv(16, 4, 1),
        "restore": conv(4, 16, 1),
        "b": block(16, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def squeeze_excite(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    gate = torch.sigmoid(m.restore(F.relu(m.reduce(F.adaptive_avg_pool2d(x, 1)))))
    return m.head(pooled(m.b(x * gate)))


@structure(
    lambda: {
        "a": block(3, 16),
        "reduce": nn.Linear(16, 4),
        "restore": nn.Linear(4, 16),
        "head": nn.Linear(16, 5),
    },
    IMAGE,
)
def squeeze_excite_linear(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    b, c, _, _ = x.shape
    gate = torch.sigmoid(m.restore(F.relu(m.reduce(x.mean((2, 3)).view(b, c))))).view(b, c, 1, 1)
    return m.head(pooled(x * gate.expand_as(x)))


@structure(
    lambda: {
        "a": conv(3, 8, 1),
        "b": conv(3, 12),
        "c": conv(3, 8, 5),
        "d": block(28, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def inception(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.d(torch.cat([m.a(x), m.b(x), m.c(x)], dim=1))))


@structure(
    lambda: {
        "a": conv(3, 8),
        "b": block(8, 4),
        "c": block(12, 4),
        "norm": nn.BatchNorm2d(16),
        "head": nn.Linear(16, 5),
    },
    IMAGE,
)
def dense_block(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    x = torch.cat([x, m.b(x)], 1)
    x = torch.cat([x, m.c(x)], 1)
    return m.head(pooled(F.relu(m.norm(x))))


@structure(
    lambda: {
        "down": block(3, 8),
        "deep": block(8, 16),
        "up": nn.ConvTranspose2d(16, 8, 2, stride=2),
        "merge": block(16, 8),
        "head": conv(8, 4, 1),
    },
    IMAGE,
)
def unet(m: Any, x: Tensor) -> Tensor:
    skip = m.down(x)
    x = m.up(m.deep(F.max_pool2d(skip, 2)))
    return m.head(m.merge(torch.cat([skip, x], 1)))


@structure(
    lambda: {
        "a": nn.Conv1d(3, 16, 3, padding=1),
        "n": nn.GroupNorm(4, 16),
        "b": nn.Conv1d(16, 16, 3, padding=2, dilation=2),
        "head": nn.Linear(16, 5),
    },
    (2, 3, 12),
)
def conv1d_group_norm(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head((x + m.b(F.gelu(m.n(x)))).mean(2))


@structure(
    lambda: {
        "a": conv(3, 16),
        "n": nn.GroupNorm(2, 16),
        "o": nn.GroupNorm(1, 16),
        "b": conv(16, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def few_norm_groups(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.b(F.relu(m.o(m.n(m.a(x)))))))


@structure(
    lambda: {
        "a": nn.Conv3d(2, 8, 3, padding=1),
        "n": nn.BatchNorm3d(8),
        "b": nn.Conv3d(8, 6, 3),
        "head": nn.Linear(6, 5),
    },
    (1, 2, 4, 6, 6),
)
def conv3d(m: Any, x: Tensor) -> Tensor:
    return m.head(F.relu(m.b(F.avg_pool3d(F.relu(m.n(m.a(x))), (1, 2, 2)))).mean((2, 3, 4)))


@structure(
    lambda: {
        "stem": conv(3, 8, 4, stride=4, padding=0),
        "dw": conv(8, 8, 3, groups=8),
        "n": nn.LayerNorm(8),
        "up": nn.Linear(8, 32),
        "down": nn.Linear(32, 8),
        "gamma": parameter(8),
        "head": nn.Linear(8, 5),
    },
    (2, 3, 16, 16),
)
def convnext(m: Any, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = m.n(m.dw(x).permute(0, 2, 3, 1))
    y = (m.gamma * m.down(F.gelu(m.up(y)))).permute(0, 3, 1, 2)
    return m.head(pooled(x + y))


@structure(
    lambda: {
        "a": conv(3, 8),
        "n": nn.InstanceNorm2d(8, affine=True),
        "p": nn.PReLU(8),
        "b": conv(8, 6),
        "q": nn.PReLU(),
        "head": conv(6, 3),
    },
    IMAGE,
)
def instance_norm_prelu_upsample(m: Any, x: Tensor) -> Tensor:
    x = m.p(m.n(m.a(x)))
    return torch.tanh(m.head(m.q(m.b(F.interpolate(x, scale_factor=2, mode="bilinear")))))


@structure(
    lambda: {
        "a": conv(3, 8),
        "dw": nn.ConvTranspose2d(8, 8, 2, stride=2, groups=8),
        "g": nn.ConvTranspose2d(8, 12, 3, groups=2),
        "head": nn.Linear(12, 5),
    },
    IMAGE,
)
def grouped_transposed_conv(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(F.relu(m.g(F.relu(m.dw(m.a(x)))))))


@structure(
    lambda: {"w": parameter(8, 3, 3, 3), "bias": parameter(8), "v": parameter(6, 8), "head": nn.Linear(6, 5)},
    IMAGE,
)
def parameters_outside_layers(m: Any, x: Tensor) -> Tensor:
    x = F.relu(F.conv2d(x, m.w, m.bias, padding=1))
    return m.head(F.relu(pooled(x) @ m.v.t()))


@structure(lambda: {"a": conv(3, 8), "twice": conv(8, 8), "head": nn.Linear(8, 5)}, IMAGE)
def one_layer_twice(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(F.relu(m.twice(F.relu(m.twice(F.relu(m.a(x))))))))


@structure(lambda: {"a": block(3, 8), "gate": conv(8, 8), "b": conv(8, 8), "head": nn.Linear(8, 5)}, IMAGE)
def gating(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head(pooled(torch.where(x > 0.1, torch.sigmoid(m.gate(x)) * m.b(x), x)))


@structure(lambda: {"a": block(3, 8), "b": conv(32, 8, 1), "head": nn.Linear(8, 5)}, IMAGE)
def spatial_pyramid(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    y = F.max_pool2d(x, 3, 1, 1)
    z = F.max_pool2d(y, 3, 1, 1)
    return m.head(pooled(m.b(torch.cat([x, y, z, F.max_pool2d(z, 3, 1, 1)], 1))))


@structure(
    lambda: {
        "a": nn.utils.parametrizations.weight_norm(conv(3, 8)),
        "b": conv(8, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def weight_norm(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.b(F.relu(m.a(x)))))


@structure(
    lambda: {
        "a": block(3, 12),
        "t": nn.ConvTranspose2d(12, 24, 3, groups=3),
        "n": nn.BatchNorm2d(24),
        "u": nn.ConvTranspose2d(24, 6, 2, stride=2, groups=6),
        "head": nn.Linear(6, 5),
    },
    IMAGE,
)
def two_groupings_transposed(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(F.relu(m.u(F.relu(m.n(m.t(m.a(x))))))))


@structure(
    lambda: {
        "a": conv(3, 8),
        "b": conv(3, 8),
        "f": conv(8, 4, 1),
        "one": conv(4, 8, 1),
        "two": conv(4, 8, 1),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
)
def selective_kernels(m: Any, x: Tensor) -> Tensor:
    a, b = m.a(x), m.b(x)
    z = F.relu(m.f((a + b).mean((2, 3), keepdim=True)))
    weights = torch.softmax(torch.stack([m.one(z), m.two(z)], 1), 1)
    return m.head(pooled((torch.stack([a, b], 1) * weights).sum(1)))


@structure(lambda: {"a": conv(3, 8), "b": conv(8, 16), "c": conv(8, 8), "head": nn.Linear(8, 5)}, IMAGE)
def scale_and_shift(m: Any, x: Tensor) -> Tensor:
    x = m.a(x)
    scale, shift = m.b(x).mean((2, 3)).chunk(2, -1)
    return m.head(pooled(m.c(x * (1 + scale[..., None, None]) + shift[..., None, None])))


class Blur(nn.Module):
    """A fixed smoothing of every channel, then a fixed mixture of all: weights that are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.full((8, 1, 3, 3), 1 / 9))
        self.register_buffer("mixture", 0.2 * torch.randn(8, 8, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, self.kernel, padding=1, groups=8), self.mixture, padding=1)  # type: ignore[arg-type]


@structure(
    lambda: {"a": block(3, 8), "b": Blur(), "c": conv(8, 6), "head": nn.Linear(6, 5)}, IMAGE, module=False
)
def buffers_as_weights(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.c(F.relu(m.b(m.a(x))))))


@structure(
    lambda: {
        "a": nn.utils.parametrizations.spectral_norm(conv(3, 8)),
        "b": conv(8, 8),
        "head": nn.Linear(8, 5),
    },
    IMAGE,
    frozen={"a": "unknown operator"},
)
def spectral_norm(m: Any, x: Tensor) -> Tensor:
    return m.head(pooled(m.b(F.relu(m.a(x)))))
