"""A digest names what a graph computes, and is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.digest import graph_digest

PROGRAM = """
import torch
from torch import nn
from sparsebit.graph.capture import capture
from sparsebit.graph.digest import graph_digest

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(self.a(x).relu()[..., :3].to(torch.float32)).softmax(-1)

print(graph_digest(capture(Net(), (torch.zeros(1, 4),))))
"""


class Scaled(nn.Module):
    """One linear layer and a number."""

    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.factor


def digest(width: int = 3, factor: float = 2.0) -> str:
    return graph_digest(capture(Scaled(width, factor), (torch.randn(1, 4),)))


def test_weights_do_not_count_and_everything_else_does() -> None:
    assert digest() == digest()
    assert len({digest(), digest(width=5), digest(factor=3.0)}) == 3


def test_methods_that_no_operator_is_known_for_count() -> None:
    class Method(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.linear, self.name = nn.Linear(4, 4), name

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = getattr(self.linear(x), self.name)()
            return found

    names = ("to_dense", "matrix_exp", "to_dense")
    assert len({graph_digest(capture(Method(name), (torch.randn(4, 4),))) for name in names}) == 2


def test_parameters_can_be_left_out() -> None:
    one, other = (capture(Scaled(width, 2.0), (torch.randn(1, 4),)) for width in (3, 5))
    without = {id(p) for gm in (one, other) for p in gm.parameters()}
    assert graph_digest(one, without=without) == graph_digest(other, without=without)


def test_another_process_finds_the_same() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
