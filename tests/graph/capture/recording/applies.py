"""Models that are a linear layer and a function, so that one line of a model is one test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.graph.capture import CapturedModule, capture

X = torch.randn(4, 4)


class Applies(nn.Module):
    """A linear layer and a function of its result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def net() -> nn.Sequential:
    """Two layers and what is between them."""
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def recorded(function: Callable[[Tensor], Any], **options: Any) -> CapturedModule:
    """The graph of a linear layer and a function of its result."""
    return capture(Applies(function).eval(), X, **options)


def targets_of(graph: CapturedModule) -> list[Any]:
    """The functions that a graph calls, in order."""
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def calls_of(graph: nn.Module) -> list[str]:
    """The modules that a graph calls, in order."""
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_module"]  # type: ignore[union-attr]


@dataclasses.dataclass
class Result:
    """What a part of a model returns that is not a tensor."""

    value: Tensor
    label: str = ""
    parts: list[Tensor] = dataclasses.field(default_factory=list)


class Clamps(nn.Module):
    """Keeps its own weight in range before it uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([-3.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x[:2, :2] * self.weight
