"""How models are called and what they return."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..collect import Collector
from ..entry import Call, floats, integers

nasty = Collector()
Plain = namedtuple("Plain", "mean spread")


class Scored(NamedTuple):
    """A typed named tuple."""

    score: Tensor
    parts: list[Tensor]


@dataclass
class Batch:
    """A user's own input type, known to no pytree registry."""

    features: Tensor
    weights: Tensor | None = None
    name: str = "train"


@dataclass
class Prediction:
    """A user's own output type."""

    logits: Tensor
    hidden: tuple[Tensor, ...]
    extra: dict[str, Tensor] | None = None


class Result:
    """An ordinary object with tensors as attributes."""

    def __init__(self, logits: Tensor, steps: list[Tensor]) -> None:
        self.logits, self.steps, self.version = logits, steps, 1


def _two(batch: int) -> Call:
    return (floats(batch, 6), floats(batch, 6, seed=1)), {}


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)


@nasty(
    lambda batch: (({"left": floats(batch, 6), "right": [floats(batch, 6, seed=1), None], "name": "a"},), {})
)
class DictInput(_Layer):
    """A dict holding a list of tensors, a None and a string."""

    def forward(self, batch: dict[str, Any]) -> Tensor:
        return self.fc(batch["left"]) + batch["right"][0]


@nasty(lambda batch: ((Batch(floats(batch, 6), floats(batch, 1, seed=1)),), {}))
class DataclassInOut(_Layer):
    """A dataclass in, another one out."""

    def forward(self, batch: Batch) -> Prediction:
        hidden = self.fc(batch.features)
        assert batch.weights is not None
        return Prediction(
            logits=hidden * batch.weights, hidden=(hidden, hidden.relu()), extra={"sum": hidden.sum(1)}
        )


@nasty()
class NamedTupleOutput(_Layer):
    """Two kinds of named tuples, nested."""

    def forward(self, x: Tensor) -> tuple[Plain, Scored]:
        y = self.fc(x)
        return Plain(y.mean(1), y.std(1)), Scored(score=y.sum(1), parts=list(y.split(2, dim=1)))


@nasty()
class NestedOutput(_Layer):
    """Lists in tuples in dicts, an empty list, an ordered dict, numbers and strings."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.fc(x)
        inner = OrderedDict([("z", y.exp()), ("a", (y.abs(), [y.neg()]))])
        return {"list": [y, [y + 1, (y + 2,)]], "empty": [], "ordered": inner, 3: "three", "number": 7}


@nasty()
class ObjectOutput(_Layer):
    """An object that is no container: its tensors hide in attributes."""

    def forward(self, x: Tensor) -> Result:
        y = self.fc(x)
        return Result(y, [y.relu(), y.tanh()])


@nasty(lambda batch: ((floats(batch, 6),), {"scale": floats(6, seed=1), "bias": floats(batch, 1, seed=2)}))
class KeywordOnly(_Layer):
    """Keyword-only tensors, one with a default."""

    def forward(self, x: Tensor, *, scale: Tensor, bias: Tensor | None = None, power: int = 2) -> Tensor:
        y = self.fc(x) * scale
        return y if bias is None else y + bias**power


@nasty()
class DefaultArguments(_Layer):
    """Defaults of every kind, none of them given."""

    def forward(
        self,
        x: Tensor,
        other: Tensor | None = None,
        scale: float = 2.0,
        flag: bool = True,
        mode: str = "relu",
    ) -> Tensor:
        y = self.fc(x) * scale
        if other is not None:
            y = y + other
        return getattr(torch, mode)(y) if flag else y


@nasty(
    lambda batch: ((floats(batch, 6), None, 0.5), {"mode": "tanh", "flag": True}),
    name="default_arguments_given",
)
class _DefaultArgumentsGiven(DefaultArguments):
    """The same, with a None, a float, a string and a bool given."""


@nasty(lambda batch: (tuple(floats(batch, 6, seed=i) for i in range(4)), {}))
class VarArgs(_Layer):
    """forward(*tensors)."""

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.fc(torch.stack(tensors).sum(0)) + len(tensors)


@nasty(lambda batch: ((), {"b": floats(batch, 6), "a": floats(batch, 6, seed=1)}))
class VarKwargs(_Layer):
    """forward(**tensors), in the order given."""

    def forward(self, **tensors: Tensor) -> dict[str, Tensor]:
        return {name: self.fc(value) + index for index, (name, value) in enumerate(tensors.items())}


@nasty(_two)
class UnusedInput(_Layer):
    """The second input is never read, but must stay in the signature."""

    def forward(self, x: Tensor, unused: Tensor) -> Tensor:
        return self.fc(x)


@nasty()
class NoneOutput(_Layer):
    """None beside tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, None, dict[str, None]]:
        return self.fc(x), None, {"loss": None}


@nasty(_two)
class OutputIsInput(_Layer):
    """Both inputs come back unchanged, as themselves."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return y, self.fc(x), x


@nasty()
class SameOutputTwice(_Layer):
    """One tensor in two places of the output, and a view of it."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.fc(x)
        return {"first": y, "again": (y, y.view(-1, 3, 2))}


@nasty()
class ConstantOutput(_Layer):
    """A constant, a parameter and a buffer among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchors", torch.arange(4.0))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.fc(x), torch.ones(3), self.fc.bias, self.anchors


@nasty(lambda batch: ((floats(batch, 6), 3), {"repeat": 2}))
class IntegerInput(_Layer):
    """Python ints among the inputs, one of them the length of a loop."""

    def forward(self, x: Tensor, width: int, repeat: int = 1) -> Tensor:
        for _ in range(repeat):
            x = self.fc(x)
        return x[:, :width]


@nasty(lambda batch: ((floats(batch, 6), [floats(batch, 6, seed=1), (floats(batch, 6, seed=2),)]), {}))
class NestedInput(_Layer):
    """A list with a tuple inside it, unpacked."""

    def forward(self, x: Tensor, others: list[Any]) -> Tensor:
        first, (second,) = others
        return self.fc(x) + first * second


@nasty(lambda batch: ((x := floats(batch, 6), x), {}))
class SameInputTwice(_Layer):
    """The caller gives one tensor for both arguments; other callers will not."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(x) - y


@nasty(lambda batch: ((), {}), notes="no inputs at all")
class NoInput(_Layer):
    """A model of no inputs."""

    def forward(self) -> Tensor:
        return self.fc(torch.ones(2, 6)).tanh()


@nasty(lambda batch: ((integers(10, batch, 5),), {}), trains=False)
class IntegerOutput(nn.Module):
    """Only int64 comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).argmax(-1) + tokens


@nasty(
    lambda batch: ((floats(batch, 5, 6),), {}),
    other_sizes=lambda: [((floats(2, 8, 6),), {})],
    notes="an int that follows the input among the outputs",
)
class SizeOutput(_Layer):
    """Returns the length it saw."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"y": self.fc(x), "length": x.size(1), "shape": x.shape}


@nasty(lambda batch: ((torch.tensor(0.5), floats(batch, 6)), {}))
class ScalarTensorInput(_Layer):
    """A zero-dimensional tensor input."""

    def forward(self, scale: Tensor, x: Tensor) -> Tensor:
        return self.fc(x) * scale + scale.sqrt()


@nasty(lambda batch: ((floats(batch, 6),), {"mask": floats(batch, 6) > 0, "index": integers(6, batch, 2)}))
class MixedDtypes(_Layer):
    """A bool mask and an index tensor as keyword inputs."""

    def forward(self, x: Tensor, index: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.fc(x)
        y = y if mask is None else torch.where(mask, y, y.new_tensor(-1.0))
        return y.gather(1, index)
