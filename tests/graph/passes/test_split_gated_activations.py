from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.graph.ops import op_name
from sparsebit.graph.passes.split_gated_activations import split_gated_activations

GATED = frozenset({"hardswish", "silu"})


@pytest.mark.parametrize(
    ("module", "function", "gate"),
    [(nn.Hardswish, F.hardswish, "hardsigmoid"), (nn.SiLU, F.silu, "sigmoid")],
)
def test_modules_and_functions_become_gate_and_product(
    module: Callable[[], nn.Module], function: Callable[[Tensor], Tensor], gate: str
) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(module(), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return function(self.layers(3 * x))

    gm, x = fx.symbolic_trace(Both()), torch.randn(4, 100, dtype=torch.float64)
    wanted, names = gm(x), [node.name for node in gm.graph.nodes]
    assert split_gated_activations(gm, GATED) == 2
    gm.graph.lint()
    torch.testing.assert_close(gm(x), wanted)
    ops = [op_name(gm, node) for node in gm.graph.nodes if node.op.startswith("call_")]
    assert ops == ["mul", gate, "mul", "tanh", gate, "mul"]
    assert [node.name for node in gm.graph.nodes if not node.name.endswith("_gate")] == names
    found = [str(node.target) for node in gm.graph.nodes if node.op == "call_module"]
    assert found[0] == "layers.0"  # the gate answers to the name of the module


def test_other_operators_and_nodes_to_keep_stay() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.Hardswish(), nn.SiLU(), nn.Hardswish(), nn.Mish()))
    assert split_gated_activations(gm, {"hardswish", "mish"}, keep=["_0"]) == 1
    assert [op_name(gm, node) for node in gm.graph.nodes] == [
        *(None, "hardswish", "silu", "hardsigmoid", "mul", "mish", None)
    ]


def test_the_users_module_is_not_changed_and_a_shared_one_splits_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Hardswish()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.act(x) + 1)

    model, x = Twice(), torch.randn(50)
    gm = fx.symbolic_trace(model)
    assert split_gated_activations(gm, GATED) == 2
    torch.testing.assert_close(gm(x), model(x))
    assert type(model.act) is nn.Hardswish
    assert sum(node.target is operator.mul for node in gm.graph.nodes) == 2
