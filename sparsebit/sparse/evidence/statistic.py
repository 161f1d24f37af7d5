"""The interface of a statistic over data, and its registration.

A statistic is a frozen dataclass of settings. Its state is a value that it returns, so that it can be streamed, merged
across processes, saved and tested without a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import Tensor

from sparsebit.errors import PlugInError, RegistryError, running_plug_in
from sparsebit.graph.lending import lending
from sparsebit.registry import Registry

Source = Literal["input", "output", "gradient", "curvature"]
Evidence = Mapping[str, Mapping[str, Tensor]]  # by statistic, then by the name of the weight
Per = Literal["weight", "input", "output", "layer"]


class Statistic(ABC):
    """Something measured over batches, for each layer; by default a sum over batches, and the result their average.

    Class attributes:
        source: the input of ``measure``, in float32 or wider. "input" and "output": the layer's input, or its output
            after norm and activation, as [channels, batch, ...]. "gradient": that of the loss, in the shape of the
            weight. "curvature": see ``Curvature``.
        per: what the result has one number for: each "weight", each "input" channel, each "output" channel, or the
        "layer" (any shape).
    """

    source: ClassVar[Source]
    per: ClassVar[Per] = "weight"

    @abstractmethod
    def measure(self, seen: Tensor) -> Any:
        """The state of one batch."""

    def merge(self, one: Any, other: Any) -> Any:
        """The state after the data of both."""
        return one + other

    def finish(self, state: Any, batches: int) -> Tensor:
        """The result, from the state and the number of batches."""
        average: Tensor = state / batches
        return average


class Curvature(Statistic):
    """A sum of products with the Hessian of the loss. ``directions`` gives the vectors to multiply by."""

    source = "curvature"
    seed: int = 0

    @abstractmethod
    def directions(
        self, weights: Mapping[str, Tensor], generator: torch.Generator
    ) -> Iterator[Mapping[str, Tensor]]:
        """Vectors, one tensor for each weight; every one costs a backward pass."""

    @abstractmethod
    def combine(self, product: Tensor, vector: Tensor) -> Tensor:
        """The input of ``measure``, from the parts of the product and of the vector for one weight."""

    def measure(self, seen: Tensor) -> Tensor:
        """As ``combine`` made it."""
        return seen


class States:
    """The states of several statistics, each of several weights."""

    def __init__(self, statistics: Mapping[str, Statistic]) -> None:
        self.statistics = statistics
        self._states: dict[tuple[str, str], Any] = {}  # by statistic and weight
        self._shapes: dict[tuple[str, str], torch.Size] = {}  # of what was measured

    def add(self, name: str, tensor: str, seen: Tensor) -> None:
        """Add a batch for one statistic of one weight."""
        statistic, key = self.statistics[name], (name, tensor)
        with lending(f"the statistic {name!r} failed on {tensor!r}", [statistic], seen):
            new = statistic.measure(seen.to(wide(seen)))
            self._states[key] = statistic.merge(self._states[key], new) if key in self._states else new
        self._shapes[key] = seen.shape

    def finish(self, batches: int, uses: Mapping[str, int] | None = None) -> dict[str, dict[str, Tensor]]:
        """The results, by statistic and weight; ``uses`` says how often a weight was measured in a batch."""
        found: dict[str, dict[str, Tensor]] = {name: {} for name in self.statistics}
        for (name, tensor), state in self._states.items():
            statistic = self.statistics[name]
            with running_plug_in(f"the statistic {name!r} failed on {tensor!r}", statistic):
                result: Any = statistic.finish(state, batches * (uses or {}).get(tensor, 1))
            shape = list(self._shapes[name, tensor])
            per, source = statistic.per, statistic.source
            wanted: list[int] | None = shape[:1] if per in ("input", "output") else shape
            if per == "layer" or (per == "weight" and source in ("input", "output")):
                wanted = None  # any shape
            if not isinstance(result, Tensor) or (wanted is not None and list(result.shape) != wanted):
                got = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
                raise PlugInError(
                    f"the result of statistic {name!r} does not fit per = {per!r}",
                    where=tensor,
                    expected="a tensor" if wanted is None else f"a tensor {wanted}",
                    got=str(got),
                )
            found[name][tensor] = result
        return found


Kind = TypeVar("Kind", bound="type[Statistic]")
STATISTICS: Registry[Statistic] = Registry("statistic", Statistic)


def register_statistic(name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Class decorator that lets criteria name the statistic in ``needs``, and read it with ``rows.need(name)``."""

    def add(kind: Kind) -> Kind:
        for field, default, known in (("source", "", Source), ("per", "weight", Per)):
            if (value := getattr(kind, field, default)) not in get_args(known):
                raise RegistryError(
                    f"{field} of statistic {name!r} cannot be {value!r:.80}",
                    expected=", ".join(get_args(known)),
                )
        STATISTICS.register(name, replace=replace)(kind())
        return kind

    return add


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype of sums: float64 for float64, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
