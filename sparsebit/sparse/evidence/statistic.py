"""What a statistic over data is, and how one is made known.

A statistic is a frozen dataclass of settings; its state is a value that it returns, so that it can be streamed, merged
across processes, saved and tested without a model. Criteria name statistics in ``needs``; anything else that runs data
through layers (methods for language models) may use them as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from sparsebit.registry import Registry

Source = Literal["input", "output", "gradient", "curvature"]
Per = Literal["weight", "input", "output", "layer"]


class Statistic(ABC):
    """Something measured over batches, for every layer apart. Batches in any order and split in any way give the same.

    Class attributes:
        source: what ``update`` is given. "input" and "output": the layer's input, or its output behind norm and
            activation, as [channels, batch, ...]. "gradient": that of the loss, in the shape of the weight.
            "curvature": see ``Curvature``.
        per: what the result has a number for: each "weight", each "input" channel, each "output" channel, or the
            "layer" as one thing (any shape).
    """

    source: ClassVar[Source]
    per: ClassVar[Per] = "weight"

    @abstractmethod
    def init(self) -> Any:
        """The state before any data."""

    @abstractmethod
    def update(self, state: Any, seen: Tensor) -> Any:
        """The state after one batch more."""

    @abstractmethod
    def merge(self, one: Any, other: Any) -> Any:
        """The state after the data of both."""

    @abstractmethod
    def finish(self, state: Any, batches: int) -> Tensor:
        """The result, from the state and the number of batches."""


class Sum(Statistic):
    """A statistic that adds up something of every batch, in float32 or wider; the result is the average."""

    @abstractmethod
    def measure(self, seen: Tensor) -> Tensor:
        """What one batch adds."""

    def init(self) -> Tensor | None:
        """Nothing yet."""
        return None

    def update(self, state: Tensor | None, seen: Tensor) -> Tensor:
        """Add one batch."""
        return self.merge(state, self.measure(seen.to(wide(seen))))

    def merge(self, one: Tensor | None, other: Tensor | None) -> Tensor:
        """The sum of both."""
        assert one is not None or other is not None, "nothing was measured"
        return other if one is None else one if other is None else one + other  # type: ignore[return-value]

    def finish(self, state: Tensor, batches: int) -> Tensor:
        """The average over the batches."""
        return state / batches


class Curvature(Sum):
    """A sum of products with the Hessian of the loss. ``directions`` says with which vectors it is multiplied."""

    source = "curvature"
    seed: int = 0

    @abstractmethod
    def directions(
        self, weights: Mapping[str, Tensor], generator: torch.Generator
    ) -> Iterator[Mapping[str, Tensor]]:
        """Vectors, one tensor for each weight; every one costs a backward pass."""

    @abstractmethod
    def combine(self, product: Tensor, vector: Tensor) -> Tensor:
        """What ``update`` is given, from the part of the product and of the vector that belong to one weight."""

    def measure(self, seen: Tensor) -> Tensor:
        """As ``combine`` made it."""
        return seen


Kind = TypeVar("Kind", bound="type[Statistic]")
STATISTICS: Registry[Statistic] = Registry("statistic")


def register_statistic(name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Class decorator: criteria may then name it in ``needs``, and read it with ``rows.need(name)``."""

    def add(kind: Kind) -> Kind:
        STATISTICS.register(name, replace=replace)(kind())
        return kind

    return add


def wide(tensor: Tensor) -> torch.dtype:
    """What sums are kept in: float64 for float64, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
