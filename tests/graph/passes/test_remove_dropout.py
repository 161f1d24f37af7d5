from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import GraphModule

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import find_op
from sparsebit.graph.passes.remove_dropout import remove_dropout, why_not_remove_dropout


def reasons(gm: GraphModule) -> list[str]:
    dropouts = [n for n in gm.graph.nodes if (spec := find_op(gm, n)) and spec.family == "dropout"]
    return [reason for node in dropouts if (reason := why_not_remove_dropout(gm, node)) is not None]


def trace(forward: Callable[..., Tensor]) -> GraphModule:
    return fx.symbolic_trace(forward)


@pytest.mark.parametrize(
    ("module", "rank"),
    [
        (nn.Dropout(), 2),
        (nn.Dropout1d(), 3),
        (nn.Dropout2d(), 4),
        (nn.Dropout3d(), 5),
        (nn.AlphaDropout(), 2),
    ],
)
def test_modules_are_removed_in_eval_only(module: nn.Module, rank: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), module)
    gm = fx.symbolic_trace(model)
    assert remove_dropout(gm.train()) == 0
    assert reasons(gm) == ["the graph is in training mode"]
    x = torch.randn([3] * rank)
    expected = model.eval()(x)
    assert remove_dropout(gm.eval()) == 1
    assert torch.equal(gm(x), expected)
    assert reasons(gm) == []


def test_a_module_in_training_mode_of_its_own_stays() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.Dropout())).eval()
    gm.get_submodule("0").train()
    assert remove_dropout(gm) == 0
    assert reasons(gm) == ["0 is itself in training mode"]


def test_the_default_of_the_function_is_to_drop_always() -> None:
    gm = trace(lambda x: F.dropout(x, 0.5)).eval()
    assert remove_dropout(gm) == 0
    assert reasons(gm) == ["dropout is active in both modes: it was called with training=True"]


def test_functions_that_do_nothing_are_removed() -> None:
    def forward(x: Tensor) -> Tensor:
        x = F.dropout(x, 0.5, False)
        x = F.dropout(x, p=0.0)
        x = torch.dropout(x, 0.5, False)
        x = F.dropout2d(x, training=False)
        return F.alpha_dropout(x, 0.5)

    gm, x = trace(forward).eval(), torch.randn(2, 3, 4, 4)
    assert remove_dropout(gm) == 5
    assert torch.equal(gm(x), x)


def test_a_flag_that_only_a_run_knows_keeps_the_dropout() -> None:
    gm = trace(lambda x, flag: F.dropout(x, 0.5, flag)).eval()
    assert remove_dropout(gm) == 0
    assert reasons(gm) == [
        "whether dropout drops is known only at run time: its training flag is computed by flag"
    ]


def test_a_flag_that_follows_the_mode_is_read() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, self.training)

    gm = capture(Net().eval(), (torch.randn(2, 3),))
    assert any(node.op == "call_module" for node in gm.graph.nodes)  # the constant that follows the mode
    x = torch.ones(10, 10)
    assert gm.train()(x).eq(0).any()
    assert remove_dropout(gm.train()) == 0
    assert remove_dropout(gm.eval()) == 1
    assert torch.equal(gm(x), x)


def test_stochastic_depth_counts() -> None:
    class DropPath(nn.Module):
        def __init__(self, drop_prob: float) -> None:
            super().__init__()
            self.drop_prob = drop_prob

        def forward(self, x: Tensor) -> Tensor:
            return x * (torch.rand(len(x), 1) > self.drop_prob) if self.training else x

    gm = capture(nn.Sequential(nn.Linear(3, 3), DropPath(0.5)).eval(), (torch.randn(2, 3),))
    assert remove_dropout(gm) == 1


def test_a_dropout_that_returns_its_mask_stays() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(torch.native_dropout, (graph.placeholder("x"), 0.5, False)))
    gm = GraphModule(nn.Module(), graph).eval()
    assert remove_dropout(gm) == 0
    assert reasons(gm) == ["native_dropout returns its mask as well"]


def test_asking_about_another_node() -> None:
    gm = trace(lambda x: x.relu())
    assert (
        why_not_remove_dropout(gm, next(n for n in gm.graph.nodes if n.name == "relu"))
        == "relu is not a dropout"
    )
