"""An exported graph in the normal form: canonical operators with the numbers of the model."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.capture.exported import convert
from sparsebit.graph.value import TensorInfo
from tests.graph.capture.exported.models import Small, export
from tests.graph.capture.recording.applies import Applies

X = torch.randn(3, 4)


def test_operators_are_in_the_normal_form() -> None:
    graph = capture(export(Small().eval(), X))
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert {operator.mul, operator.add, Tensor.view, torch.transpose, torch.reshape, torch.softmax} <= targets
    assert not any(node.op == "call_method" for node in graph.graph.nodes)
    values = [node.meta["value"] for node in graph.graph.nodes if node.target is torch.softmax]
    assert values == [TensorInfo((3, 4), torch.float32)]


def filled(y: Tensor) -> Tensor:
    y[:, 0] = 0
    return y * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.relu_().add_(1) * y,
        filled,
        lambda y: y[1:, ::2][..., None].squeeze(-1) + y[0, 1],
        lambda y: torch.ops.aten.slice.Tensor(y, 1, 2),
        lambda y: torch.cat([y, -y], 1).split([3, 5], dim=1)[1],
        lambda y: y.new_zeros(y.size(0), 4) + torch.arange(4, device=y.device) + torch.ones(y.shape[0], 1),
        lambda y: F.scaled_dot_product_attention(y[None], y[None], y[None], is_causal=True),
        lambda y: y.topk(2).values + y.sort(1)[1][:, :2],
        lambda y: y.masked_fill(y > 0, 0.0).to(torch.float64).clamp(-1),
        lambda y: y.expand(2, -1, -1).repeat(1, 2, 1).permute(2, 0, 1).contiguous(),
        lambda y: F.interpolate(y[None], scale_factor=2.0) + F.pad(y, (2, 2))[None],
        lambda y: torch.where(y > 0, y, 0.5).var(1) / y.norm(dim=1),
        lambda y: 1 - y // 0.5 % 2 + (y > 0) * (~(y > 1)) ** 2,
    ],
)
def test_exported_gives_the_models_numbers(function: Callable[[Tensor], Any]) -> None:
    model = Applies(function).eval()
    graph = capture(model, X, frontend="exported")
    for x in (X, torch.randn(5, 4)):
        assert torch.equal(graph(x), model(x))


def test_devices_follow_the_input() -> None:
    graph = capture(Applies(lambda y: y + torch.arange(4, device=y.device)), X, frontend="exported")
    assert graph.to("meta")(X.to("meta")).device.type == "meta"


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


def test_a_plain_tensor_of_a_model_is_a_constant() -> None:
    assert torch.equal(capture(Plain(), X, frontend="exported")(X), X + torch.arange(4.0))


def test_a_plain_tensor_of_a_program_is_a_constant() -> None:
    graph = capture(export(Plain(), X))
    assert torch.equal(graph(X), X + torch.arange(4.0))


def test_a_module_with_one_operator_is_raised_and_one_that_is_called_twice_is_not() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.once, self.twice = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.twice(self.twice(self.once(x)))

    model = Net().eval()
    graph = capture(model, X, frontend="exported")
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["once"]
    assert torch.equal(graph(X), model(X))


def test_the_graph_is_gone_through_a_fixed_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each node to look at all others would take minutes at 10,000 nodes."""
    seen = []
    path_of = convert._path_of

    def counted(node: fx.Node) -> str:
        seen.append(node)
        return path_of(node)

    monkeypatch.setattr(convert, "_path_of", counted)
    counts = []
    for layers in (10, 20):
        seen.clear()
        capture(nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))).eval(), X, frontend="exported")
        counts.append(len(seen) / layers)
    assert counts[1] <= counts[0] * 1.1
