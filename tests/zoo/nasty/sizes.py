"""Shapes that pass through Python: arithmetic, slices, masks and tables built from sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..collect import Collector
from ..entry import Call, floats, image_sizes, images, integers

nasty = Collector()


def _sequence(batch: int, length: int = 6) -> Call:
    return (floats(batch, length, 8),), {}


def _lengths(*lengths: int) -> Callable[[], list[Call]]:
    return lambda: [_sequence(2, length) for length in lengths]


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)


@nasty(_sequence, other_sizes=_lengths(4, 10))
class SizeArithmetic(_Layer):
    """view(b, -1, c // 2), halves of the length, products of sizes."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.fc(x).view(batch, -1, width // 2)
        assert y.shape[1] == 2 * length
        y = y.reshape(batch * length, 2, width // 2).sum(1).view(batch, length, -1)
        half = length // 2
        return torch.cat([y[:, :half], y[:, length - half :].flip(1)], dim=-1)


@nasty(_sequence, other_sizes=_lengths(5, 9))
class CausalMask(_Layer):
    """A mask from tril, ones, arange and expand, with the input's device and dtype."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        length = y.size(1)
        causal = torch.tril(torch.ones(length, length, dtype=torch.bool, device=x.device))
        places = torch.arange(y.size(1), device=y.device)
        near = (places[:, None] - places[None, :]).abs() < 4
        mask = (causal & near)[None].expand(x.size(0), -1, -1)
        scores = (y @ y.transpose(1, 2)).masked_fill(~mask, float("-inf"))
        return scores.softmax(-1) @ x


@nasty(_sequence, other_sizes=_lengths(3, 12))
class PositionTable(_Layer):
    """Learned positions sliced to the length, plus an embedding of arange."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.embedding = nn.Parameter(torch.randn(1, 16, 8)), nn.Embedding(16, 8)
        self.register_buffer("position_ids", torch.arange(16).expand(1, -1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table[:, : x.size(1)] + self.embedding(self.position_ids[:, : x.shape[1]])
        return self.fc(x)


@nasty(_sequence, other_sizes=_lengths(4, 9))
class NewTensors(_Layer):
    """new_zeros, new_full, zeros_like, ones, full and empty from sizes."""

    def forward(self, x: Tensor) -> Tensor:
        start = x.new_zeros(x.size(0), 1, x.size(2))
        x = torch.cat([start, x, x.new_full((x.shape[0], 2, 8), 0.5)], dim=1)
        ones = torch.ones(*x.shape[:2], 1) + torch.full((x.size(1), 1), 2.0)
        return self.fc(x) * ones + torch.zeros_like(x) + torch.zeros(x.shape)


@nasty(_sequence, other_sizes=_lengths(4, 9))
class ShapeTuples(_Layer):
    """Slices and sums of torch.Size, unflatten, len(), numel() and prod of sizes."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).view(x.shape[:-1] + (2, 4)).transpose(-1, -2)  # noqa: RUF005 - Size + tuple is the point
        y = y.reshape(*x.size()[:2], -1).unflatten(-1, (4, 2)).flatten(-2)
        count = math.prod(x.shape[1:])
        return y.reshape(len(x), count) / (x.numel() // x.size(0)) + sum(x.shape[1:]) + y.dim()


@nasty(_sequence, other_sizes=_lengths(5, 7, 12))
class PadToMultiple(_Layer):
    """Pads the length to a multiple of four, works in windows of four, cuts the padding off."""

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        x = F.pad(x, (0, 0, 0, -length % 4))
        windows = x.view(x.size(0), x.size(1) // 4, 4, x.size(2))
        mixed = self.fc(windows - windows.mean(2, keepdim=True)).flatten(1, 2)
        return mixed[:, :length]


@nasty(images(8), other_sizes=image_sizes((12, 10), (9, 7)))
class InterpolateToOther(nn.Module):
    """F.interpolate to another tensor's size, by shape slice and by size tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.side = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        side = self.side(x)
        small = self.down(x)
        up = F.interpolate(small, size=side.shape[2:], mode="bilinear", align_corners=False)
        again = F.interpolate(small, size=(x.size(2), x.size(3)), mode="nearest")
        return side + up + again + F.adaptive_avg_pool2d(side, (1, 1))


@nasty(images(8), other_sizes=image_sizes((12, 16)))
class WindowPartition(nn.Module):
    """Swin-like windows: view, permute, contiguous, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.permute(0, 2, 3, 1).view(batch, height // 4, 4, width // 4, 4, channels)
        windows = x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, 16, channels)
        windows = self.fc(windows) - windows.mean(1, keepdim=True)
        count = int(windows.shape[0] / (height * width / 16))
        x = windows.view(count, height // 4, width // 4, 4, 4, -1).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(batch, height, width, -1)


@nasty(_sequence, other_sizes=_lengths(8, 12), notes="the branch taken is the same at every size given")
class BranchOnSize(_Layer):
    """Chooses by length and by number of dimensions, and asserts on shapes."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == 8 and x.ndim == 3, f"bad shape {tuple(x.shape)}"
        if x.size(1) > 4:
            x = F.avg_pool1d(x.transpose(1, 2), 2).transpose(1, 2)
        return self.fc(x) if x.dim() == 3 else x


@nasty(_sequence, notes="the length passes through math.sqrt and becomes a constant: worth a warning")
class LengthThroughMath(_Layer):
    """Divides by math.sqrt of the length."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).sum(1) / math.sqrt(x.size(1))


@nasty(_sequence, notes="the loop is unrolled at the example's length: worth a warning")
class LoopOverLength(_Layer):
    """A Python loop over time with a running state."""

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[:, 0])
        states = []
        for step in range(x.size(1)):
            state = torch.tanh(self.fc(x[:, step]) + state)
            states.append(state)
        return torch.stack(states, 1)


@nasty(_sequence, other_sizes=_lengths(4, 9), notes="the mask is rebuilt only when the length grows")
class CachedMask(_Layer):
    """A mask cached on the module between calls."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        length = x.size(1)
        if self.cached is None or self.cached.size(0) < length:
            self.cached = torch.full((length, length), float("-inf")).triu(1)
        return self.fc((x @ x.mT + self.cached[:length, :length]).softmax(-1) @ x)


@nasty(_sequence, other_sizes=_lengths(4, 9))
class TensorFromSize(_Layer):
    """torch.tensor of a size, and a size as a tensor operand and exponent."""

    def forward(self, x: Tensor) -> Tensor:
        length = torch.tensor(x.size(1), dtype=x.dtype)
        return self.fc(x) / torch.sqrt(length) + x.size(1) - 2.0 ** -x.size(1) + x * x.shape[1] / x.shape[0]


@nasty(
    lambda batch: ((floats(batch, 6, 8), floats(batch, 4, 8, seed=1)), {}),
    other_sizes=lambda: [((floats(2, 5, 8), floats(2, 7, 8, seed=1)), {})],
)
class TwoLengths(_Layer):
    """Cross attention between two lengths, expand of each to the other, split by their sizes."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        left = x.unsqueeze(2).expand(-1, -1, y.size(1), -1)
        right = y.unsqueeze(1).expand(x.size(0), x.size(1), y.size(1), y.size(2))
        joined = torch.cat([x, y], dim=1)
        first, second = joined.split([x.size(1), y.size(1)], dim=1)
        return self.fc(left * right).sum(2) + first - second.mean(1, keepdim=True)


@nasty(
    lambda batch: ((integers(20, batch, 6, low=1),), {}),
    other_sizes=lambda: [((integers(20, 2, 9, low=1),), {})],
)
class ShiftedTokens(nn.Module):
    """Decoder inputs: tokens shifted right into new_zeros, and a repeated start token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.start = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, tokens: Tensor) -> Tensor:
        shifted = tokens.new_zeros(tokens.shape)
        shifted[:, 1:] = tokens[:, :-1].clone()
        shifted[:, 0] = 2
        start = self.start.repeat(tokens.shape[0], 1, 1)
        return self.out(torch.cat([start, self.embedding(shifted)], 1))
