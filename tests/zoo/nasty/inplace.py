"""Operators that write into their arguments: in place, through views, by assignment, with ``out=``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..collect import Collector, vectors
from ..entry import floats, images

nasty = Collector()


class _Affine(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)


@nasty()
class InplaceMethods(_Affine):
    """add_, mul_, clamp_ and relu_ in one chain, each result dropped."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y.add_(x)
        y.mul_(0.5).add_(1.0, alpha=0.1)
        y.clamp_(max=2.0)
        y.relu_()
        return y


@nasty()
class InplaceOperators(_Affine):
    """Augmented assignments on tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        kept = y
        y += x
        y *= 2
        y -= 1
        y /= 3
        return y + kept


@nasty()
class InplaceSlice(_Affine):
    """x[:, 0] = v, x[:, 1:3] = tensor, x[:, ::2] += 1."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y[:, 0] = 0.5
        y[:, 1:3] = x[:, 3:5]
        y[:, ::2] += 1
        return y


@nasty()
class InplaceMaskAssign(_Affine):
    """y[mask] = v and masked_fill_ with a mask from the data."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y[x > 0.5] = 0
        y.masked_fill_(x < -0.5, -1.0)
        return y


@nasty()
class InplaceThroughView(_Affine):
    """Writes to views and then reads the base."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y.view(-1, 2, 3)[:, 0].mul_(2)
        y.t()[1].add_(10)
        left, right = y[:, :3], y[:, 3:]
        left.sub_(right.detach())
        return y


@nasty()
class InplaceBaseThenView(_Affine):
    """Takes a view, writes to the base, reads the view."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        view = y[:, :3]
        y.add_(1)
        return view * 2


@nasty(images(6))
class InplaceReluReused(nn.Module):
    """nn.ReLU(inplace=True) whose input is read again afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv(x)
        after = self.relu(before)
        return before + 2 * after


@nasty()
class InplaceFunctional(_Affine):
    """F.relu(inplace=True) with its result dropped, torch.relu_ and F.leaky_relu_."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        F.relu(y, inplace=True)
        z = self.fc(y - 1)
        F.leaky_relu_(z.sub_(0.2), 0.1)
        w = self.fc(x)
        torch.relu_(w)
        return y + z + w


@nasty()
class InplaceOnInput(_Affine):
    """Changes the caller's own tensor, then uses it."""

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return self.fc(x) + x


@nasty(trains=False, notes="out= is not differentiable")
class OutArgument(nn.Module):
    """torch.add and torch.matmul into preallocated tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.empty_like(x)
        torch.add(x, 1.0, out=total)
        product = x.new_empty(x.size(0), 4)
        torch.matmul(total, self.weight, out=product)
        return product


@nasty()
class FilledBuffer(_Affine):
    """new_zeros filled column by column, in a loop of fixed length."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        filled = y.new_zeros(y.size(0), 3)
        for column in range(3):
            filled[:, column] = y[:, column] * y[:, column + 3]
        return filled


@nasty()
class InplaceScatter(_Affine):
    """scatter_, index_add_, index_fill_, copy_ and zero_ on fresh tensors."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        one_hot = torch.zeros_like(y).scatter_(1, y.argmax(1, keepdim=True), 1.0)
        gathered = torch.zeros_like(y).index_add_(1, torch.tensor([5, 4, 3, 2, 1, 0]), y)
        copied = torch.empty_like(y)
        copied.copy_(gathered)
        gathered.zero_()
        return copied + one_hot.index_fill_(1, torch.tensor([0]), 0.5) + gathered


@nasty()
class InplaceShape(_Affine):
    """unsqueeze_, transpose_ and squeeze_ change a tensor's shape under its name."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x) * 1.0
        y.unsqueeze_(1)
        y.transpose_(1, 2)
        return y.squeeze_(2).softmax(-1)


@nasty()
class InplaceAfterSave(_Affine):
    """A list holds a tensor that is changed afterwards."""

    def forward(self, x: Tensor) -> list[Tensor]:
        steps = [self.fc(x)]
        for _ in range(3):
            steps[-1].add_(0.1)
            steps.append(steps[-1].sin())
        return steps


@nasty()
class InplaceDropout(_Affine):
    """nn.Dropout(inplace=True) and an in-place Hardswish between residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.act = nn.Dropout(0.5, inplace=True), nn.Hardswish(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y + self.act(self.drop(self.fc(x)))


@nasty(lambda batch: ((floats(batch, 5, 6),), {}), other_sizes=lambda: [((floats(2, 9, 6),), {})])
class SinusoidBuiltInForward(_Affine):
    """A position table built by writing to every second column."""

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.size(1), dtype=x.dtype, device=x.device).unsqueeze(1)
        rates = torch.exp(torch.arange(0, 6, 2, dtype=x.dtype) * -0.5)
        table = torch.zeros(x.size(1), 6, dtype=x.dtype, device=x.device)
        table[:, 0::2] = torch.sin(places * rates)
        table[:, 1::2] = torch.cos(places * rates)
        return self.fc(x + table)


@nasty(vectors(6))
class InplaceWhileShared(_Affine):
    """The same tensor is returned and changed after it was put into the output."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = {"y": self.fc(x)}
        out["z"] = out["y"] * 2
        out["y"].add_(100)
        return out
