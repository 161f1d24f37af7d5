from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.remove_identity import remove_identity


def test_identities_are_bypassed_and_the_outputs_stay() -> None:
    model = nn.Sequential(
        nn.Identity(), nn.Linear(3, 3), nn.Identity(), nn.Identity(), nn.ReLU(), nn.Identity()
    )
    gm, x = fx.symbolic_trace(model), torch.randn(2, 3)
    assert remove_identity(gm) == 4
    assert torch.equal(gm(x), model(x))
    assert [node.op for node in gm.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    assert remove_identity(gm) == 0


def test_the_state_dict_stays() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 3))
    gm = capture(model, (torch.randn(2, 3),))
    remove_identity(gm)
    assert list(gm.state_dict()) == list(model.state_dict())


def test_an_identity_that_marks_a_place_stays() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    model[0].remove = False
    gm = fx.symbolic_trace(model)
    assert remove_identity(gm) == 1
    assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["0"]


def test_a_subclass_with_a_forward_of_its_own_stays() -> None:
    class Double(nn.Identity):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * input

    class Tracer(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

    model = nn.Sequential(Double())
    root = nn.Module()
    root.model = model
    gm = fx.GraphModule(model, Tracer().trace(model))
    assert remove_identity(gm) == 0


def test_an_identity_somebody_listens_to_stays() -> None:
    model = nn.Sequential(nn.Identity())
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    assert remove_identity(fx.symbolic_trace(model)) == 0


def test_a_keyword_argument_is_seen() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.same(input=x).relu()

    gm, x = fx.symbolic_trace(Net()), torch.randn(3)
    assert remove_identity(gm) == 1
    assert torch.equal(gm(x), x.relu())


def test_an_identity_of_a_constant_stays() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return x + self.same(3)

    gm = fx.symbolic_trace(Net())
    graph = gm.graph
    node = graph.call_module("same", (3,))
    next(n for n in graph.nodes if n.op == "placeholder").append(node)
    assert remove_identity(gm) == 0
