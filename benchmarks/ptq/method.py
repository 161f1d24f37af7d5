"""What is asked of every tool that is compared: prepare a model, calibrate it, answer, and show its layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

Args = tuple[Any, ...]


class Missing(Exception):
    """A tool is not installed; the message says how to install it."""


class Method(ABC):
    """One way to make W8A8 of a model. Used in the order of the methods below; ``calibrate`` may be called again."""

    name: str

    @abstractmethod
    def prepare(self, model: nn.Module, example: Args) -> None:
        """Everything before data is needed: capture or export, and put observers in place."""

    @abstractmethod
    def calibrate(self, batches: Sequence[Args]) -> None:
        """From prepared to quantized: measure the batches and choose all scales."""

    @abstractmethod
    def predict(self, *args: Any) -> Any:
        """The quantized model, called as the model is."""

    @abstractmethod
    def layers(self, args: Args) -> dict[str, Tensor]:
        """What every convolution and linear layer of the quantized model gives for one batch.

        Names are those of the modules in the model; batch norm behind a layer is part of it, an activation is not.
        """
