"""Modules and weights used more than once, and modules that are the whole model."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..collect import Collector, vectors
from ..entry import floats, images, integers

nasty = Collector()


@nasty()
class CalledTwice(nn.Module):
    """One linear layer applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(self.act(self.fc(x)))) + self.fc(x)


@nasty(images(6))
class SharedBatchNorm(nn.Module):
    """Two convolutions into one batch norm: it must not be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.bn = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv1(x)) + self.bn(self.conv2(x))


@nasty(lambda batch: ((integers(20, batch, 5),), {}), other_sizes=lambda: [((integers(20, 2, 8),), {})])
class TiedEmbedding(nn.Module):
    """The output layer's weight is the embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens)))


@nasty()
class TransposedTie(nn.Module):
    """A decoder that applies the encoder's weight transposed, with F.linear."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.encoder(x).relu(), self.encoder.weight.t())


@nasty()
class SharedContainers(nn.Module):
    """One submodule under several names, inside containers that are themselves shared."""

    def __init__(self) -> None:
        super().__init__()
        core = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.first = nn.Sequential(core, nn.Tanh())
        self.second = nn.ModuleList([core, self.first, nn.Sequential(core, core)])
        self.third = nn.ModuleDict({"a": self.first, "b": core[0]})

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.second:
            x = block(x)
        return self.third["b"](self.third["a"](x))


@nasty()
class SequentialSlice(nn.Module):
    """Runs slices of a Sequential: containers that exist only during forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        middle = self.layers[:3](x)
        return self.layers[3:](middle) + middle.mean(1, keepdim=True)


@nasty()
class ChildrenLoop(nn.Module):
    """Iterates over named_children and picks by name with getattr."""

    def __init__(self) -> None:
        super().__init__()
        for index in range(3):
            self.add_module(f"fc{index}", nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        for name, child in self.named_children():
            x = child(x) if name == "fc0" else getattr(self, name)(x).sigmoid()
        return x


@nasty()
class CallsForwardDirectly(nn.Module):
    """Calls child.forward(x), which passes by __call__ and its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.block = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.block.forward(self.fc.forward(x))


class _Nested(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6) if depth % 10 == 0 else None
        self.inner = _Nested(depth - 1) if depth > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.inner is None else self.inner(x)
        return x + 0.01 if self.fc is None else self.fc(x)


nasty(name="deep_nesting", notes="50 levels of modules")(partial(_Nested, 50))


@nasty()
class LongChain(nn.Module):
    """1500 operators in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(500):
            x = torch.tanh(x)
            x = x * self.scale
            x = x + 0.01
        return x


nasty(images(6), name="bare_conv", notes="the model is one torch.nn leaf")(partial(nn.Conv2d, 3, 4, 3))
nasty(name="bare_sequential", notes="the model is a Sequential")(
    lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
)
nasty(vectors(5, 6), name="bare_lstm", notes="the model is one nn.LSTM")(
    partial(nn.LSTM, 6, 4, batch_first=True)
)
nasty(
    lambda batch: ((floats(batch, 5, 8), floats(batch, 7, 8, seed=1), floats(batch, 7, 8, seed=2)), {}),
    name="bare_attention",
    notes="the model is one nn.MultiheadAttention, weights returned",
)(partial(nn.MultiheadAttention, 8, 2, batch_first=True))
