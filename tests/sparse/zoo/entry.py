"""What one structure of the pruning zoo is, and how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.entry import stir


@dataclass(frozen=True, kw_only=True)
class Structure:
    """One small model, its inputs, and what of it cannot shrink.

    ``frozen`` lists, for every layer that stays whole beside the outputs, a piece of the reason.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    frozen: dict[str, str]
    module: bool  # the user's own class can be shrunk too
    outputs: tuple[str, ...]  # layers that make the model's outputs


STRUCTURES: dict[str, Structure] = {}


class Net(nn.Module):
    """A model from its parts and a function of (self, *inputs)."""

    def __init__(self, function: Callable[..., Any], parts: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def structure(
    parts: Callable[[], dict[str, Any]],
    *shapes: tuple[int, ...],
    frozen: dict[str, str] | None = None,
    module: bool = True,
    outputs: tuple[str, ...] = ("head",),
    integers: int = 0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated forward function as a structure with these parts and input shapes."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def make() -> nn.Module:
            torch.manual_seed(0)
            return stir(Net(function, parts())).double().eval()

        def inputs() -> tuple[Any, ...]:
            generator = torch.Generator().manual_seed(1)
            if integers:
                return tuple(torch.randint(integers, shape, generator=generator) for shape in shapes)
            return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)

        name = function.__name__
        assert name not in STRUCTURES, name
        STRUCTURES[name] = Structure(
            name=name, make=make, inputs=inputs, frozen=frozen or {}, module=module, outputs=outputs
        )
        return function

    return add


def conv(read: int, make: int, kernel: int = 3, **options: Any) -> nn.Conv2d:
    """A convolution that keeps the size of its input unless told otherwise."""
    options.setdefault("padding", kernel // 2)
    return nn.Conv2d(read, make, kernel, **options)


def block(read: int, make: int, kernel: int = 3, **options: Any) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(conv(read, make, kernel, bias=False, **options), nn.BatchNorm2d(make), nn.ReLU())


def pooled(x: Tensor) -> Tensor:
    """The mean over height and width: [N, C]."""
    return x.mean((2, 3))


def parameter(*shape: int) -> nn.Parameter:
    """A parameter outside any layer."""
    return nn.Parameter(0.3 * torch.randn(shape))
