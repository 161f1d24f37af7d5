"""Control flow that depends on the data: a graph of one run would be wrong for the next, so it is refused."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..collect import Collector
from ..entry import floats

nasty = Collector()


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)


@nasty(refuses="branch")
class RefusedBranch(_Layer):
    """if on a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if y.sum() > 0:
            return y.relu()
        return y - 1


@nasty(refuses="branch")
class RefusedWhile(_Layer):
    """while on a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        while y.norm() > 1:
            y = y * 0.5
        return y


@nasty(refuses="item")
class RefusedItem(_Layer):
    """item() in arithmetic that decides a branch."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        level = x.abs().mean().item() * 2 + 1
        return y * 2 if level > 2.5 else y


@nasty(refuses="item", notes="recording must refuse it; symbolic tracing keeps item() as a node and is right")
class RefusedItemScale(_Layer):
    """item() as a number in the result: no branch, and still a constant of one run."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) / (1 + x.abs().max().item())


@nasty(lambda batch: ((floats(batch, 5, 6), torch.arange(2, 2 + batch)), {}), refuses="int")
class RefusedLoop(_Layer):
    """A loop over int(lengths.max())."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, 0])
        for step in range(int(lengths.max())):
            total = total + self.fc(x[:, step])
        return total


@nasty(lambda batch: ((floats(batch, 5, 6), torch.arange(2, 2 + batch)), {}), refuses="tolist")
class RefusedToList(_Layer):
    """Slices by the numbers of lengths.tolist()."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        rows = [row[:length].mean(0) for row, length in zip(self.fc(x), lengths.tolist(), strict=True)]
        return torch.stack(rows)


@nasty(refuses="numpy", trains=False)
class RefusedNumpy(_Layer):
    """Leaves torch for numpy and comes back."""

    def forward(self, x: Tensor) -> Tensor:
        order = self.fc(x).detach().numpy().argsort(axis=1)
        return torch.from_numpy(order)
