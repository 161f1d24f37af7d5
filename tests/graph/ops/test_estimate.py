"""Guessing the work of nodes that nobody described."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from sparsebit.graph.ops.estimate import estimate_macs, weights_of
from tests.graph.ops.sampling import OneNode, one_node, parameter, real, record_values, sample


class Gated(nn.Module):
    """Unknown to the table; made of known pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(4, 6), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) * torch.sigmoid(self.gate(x))


class Peeking(nn.Module):
    """Looks at its numbers, which the meta device does not have."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        self.shift = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 1e9 else x + 1


def opaque(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def estimate(graph: OneNode) -> int:
    return estimate_macs(graph.gm, graph.node)


def test_a_module_is_run_without_numbers_and_counted() -> None:
    assert estimate(one_node(sample(Gated(), real(2, 3, 4)))) == 2 * (2 * 3 * 4 * 6)


def test_a_function_is_run_without_numbers_and_counted() -> None:
    assert estimate(one_node(sample(opaque, real(5, 4), parameter(4, 6)))) == 5 * 4 * 6


def test_counting_leaves_the_module_alone() -> None:
    graph = one_node(sample(Gated(), real(2, 3, 4)))
    before = graph.run()
    estimate(graph)
    assert torch.equal(graph.run(), before)
    assert all(parameter.device.type == "cpu" for parameter in graph.gm.parameters())


@pytest.mark.parametrize(
    ("weight", "shape", "expected"), [((5, 4), (2, 3, 4), 20 * 6), ((4, 1, 3, 3), (2, 4, 5, 6), 36 * 60)]
)
def test_code_that_needs_numbers_is_guessed_from_its_weights(
    weight: tuple[int, ...], shape: tuple[int, ...], expected: int
) -> None:
    assert estimate(one_node(sample(Peeking(weight), real(*shape)))) == expected


def test_a_node_without_weights_that_cannot_run_costs_nothing() -> None:
    def peek(x: Tensor) -> Tensor:
        return x * x.sum().item()

    assert estimate(one_node(sample(peek, real(2, 3)))) == 0


def test_methods_can_be_estimated() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    node = graph.call_method("matmul", (x, y))
    graph.output(node)
    gm = fx.GraphModule(nn.Module(), graph)
    record_values(gm, real(2, 3), real(3, 4))
    assert estimate_macs(gm, node) == 2 * 3 * 4


def test_weights_are_those_of_the_module_and_those_passed() -> None:
    inside = one_node(sample(Gated(), real(2, 3, 4)))
    assert [name for name, _ in weights_of(inside.gm, inside.node)] == [
        *("layer.up.weight", "layer.up.bias", "layer.gate.weight", "layer.gate.bias"),
    ]
    passed = one_node(sample(opaque, real(5, 4), parameter(4, 6)))
    assert [name for name, _ in weights_of(passed.gm, passed.node)] == ["weight1"]
