from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import GraphModule

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.remove_dead_nodes import remove_dead_nodes, why_not_remove_node
from sparsebit.graph.passes.remove_dropout import remove_dropout


def trace(forward: object) -> GraphModule:
    return fx.symbolic_trace(forward)


def test_what_nothing_depends_on_goes_and_the_signature_stays() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor, unused: Tensor, scale: float = 2.0) -> Tensor:
            self.unused(torch.sigmoid(unused)).abs()
            return self.used(x) * scale

    model, x = Net(), torch.randn(2, 3)
    gm = trace(model)
    signature = inspect.signature(gm.forward)
    assert remove_dead_nodes(gm) == 3
    assert inspect.signature(gm.forward) == signature
    assert [n.name for n in gm.graph.nodes if n.op == "placeholder"] == ["x", "unused", "scale"]
    assert torch.equal(gm(x, x), model(x, x))
    assert gm.state_dict().keys() == model.state_dict().keys()
    assert remove_dead_nodes(gm) == 0


def test_a_captured_graph_keeps_its_call_and_state() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.drop = 0.1

        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"y": F.dropout(batch["x"] * self.scale, self.drop, self.training)}

    model = Net().eval()
    example = {"x": torch.randn(2, 3), "mask": torch.ones(2)}
    gm = capture(model, (example,))
    remove_dropout(gm)
    assert remove_dead_nodes(gm) >= 1  # the constants that follow the mode
    assert torch.equal(gm(example)["y"], model(example)["y"])
    assert list(gm.state_dict()) == ["scale"]


def test_effects_and_what_they_read_stay() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        x.add_(y)
        torch._assert(x.shape[0] > 0, "empty")
        return x

    gm, x = trace(forward), torch.ones(2)
    before = len(gm.graph.nodes)
    assert remove_dead_nodes(gm) == 0
    assert len(gm.graph.nodes) == before
    assert gm(x).tolist() == [3, 3]


def test_a_write_into_a_value_that_is_read_later_stays() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            y = x - 1
            self.relu(y)
            return y * 2

    gm, x = trace(Net()), torch.tensor([0.0, 2.0])
    assert remove_dead_nodes(gm) == 0
    assert gm(x).tolist() == [0, 2]


def test_a_norm_nobody_reads_updates_its_statistics_in_training_only() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            self.bn(x)
            return x * 2

    gm = trace(Net())
    assert remove_dead_nodes(gm.train()) == 0
    assert remove_dead_nodes(gm.eval()) == 1


def test_random_numbers_nobody_reads_go_in_eval_only() -> None:
    def forward(x: Tensor) -> Tensor:
        torch.rand_like(x)
        return x * 2

    gm = trace(forward)
    assert remove_dead_nodes(gm.train()) == 0
    (random,) = (node for node in gm.graph.nodes if node.name == "rand_like")
    assert (
        why_not_remove_node(gm, random) == "rand_like draws random numbers, and the graph is in training mode"
    )
    assert remove_dead_nodes(gm.eval()) == 1


def test_what_nothing_is_known_about_stays() -> None:
    class Counter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    def log(x: Tensor) -> None: ...

    graph, root = fx.Graph(), nn.Module()
    root.counter = Counter()
    x = graph.placeholder("x")
    graph.call_module("counter", (x,))
    graph.call_function(log, (x,))
    graph.output(x)
    gm = GraphModule(root, graph)
    assert remove_dead_nodes(gm) == 0
    idle = [node for node in gm.graph.nodes if node.op.startswith("call_") and not node.users]
    assert [why_not_remove_node(gm, node) for node in idle] == [
        "counter may change its own state",
        "nothing is known about test_what_nothing_is_known_about_stays.<locals>.log",
    ]


def test_the_reasons_of_the_others() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    check = graph.call_function(torch._assert, (x, "no"))
    graph.output(x)
    gm = GraphModule(nn.Module(), graph)
    assert why_not_remove_node(gm, x) == "x is part of the call signature"
    assert why_not_remove_node(gm, check) == "_assert has a side effect"
