from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx import GraphModule

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.graph.passes import FOLD, SIMPLIFY, run_passes
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.passes.remove_identity import remove_identity

# the model takes its columns apart, however many there are; capturing it says so
pytestmark = pytest.mark.filterwarnings("ignore:the captured graph fixed")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same, self.drop, self.relu = nn.Identity(), nn.Dropout(), nn.ReLU()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.drop(self.same(self.conv(x))))
        q, k = y.unbind(-1)[0], y.unbind(-1)[1]
        return self.relu(q + k).reshape(x.shape[0], -1)


@pytest.fixture
def model() -> Net:
    net = Net().eval()
    net.bn.running_mean = torch.randn(4)
    net.bn.running_var = torch.rand(4) + 0.5
    return net


def test_both_pipelines_keep_the_outputs(model: Net) -> None:
    gm = capture(model, (torch.randn(2, 3, 6, 6),))
    x = torch.randn(5, 3, 6, 6)
    changes = run_passes(gm, SIMPLIFY)
    assert list(changes) == [
        "remove_identity",
        "canonicalize_shape",
        "unbind_to_select",
        "replace_patterns",
        "remove_dead_nodes",
    ]
    assert changes["remove_identity"] == 1
    assert changes["unbind_to_select"] == 2
    assert torch.equal(gm(x), model(x))
    changes = run_passes(gm, FOLD)
    assert (changes["remove_dropout"], changes["fold_batch_norm"]) == (1, 1)
    assert torch.allclose(gm(x), model(x), atol=1e-5)
    assert "bn.weight" not in gm.state_dict()
    assert "bn.weight" in model.state_dict()


def test_simplify_leaves_training_as_it_is(model: Net) -> None:
    gm = capture(model, (torch.randn(2, 3, 6, 6),))
    run_passes(gm, SIMPLIFY)
    x = torch.randn(4, 3, 6, 6)
    gm.train()
    model.train()
    torch.manual_seed(0)
    ours = gm(x)
    torch.manual_seed(0)
    model.bn.reset_running_stats()
    assert torch.equal(ours, model(x))


def test_a_pass_that_comes_twice_is_counted_once(model: Net) -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.Identity(), nn.ReLU()))
    assert run_passes(gm, (remove_identity, remove_identity)) == {"remove_identity": 1}


def test_a_failing_pass_leaves_nothing_half_done(model: Net) -> None:
    def break_half_way(gm: GraphModule) -> int:
        for node in gm.graph.nodes:
            if node.name == "relu":
                raise ValueError("cannot go on")
            if node.name == "conv":
                node.replace_all_uses_with(next(iter(gm.graph.nodes)))
        return 0

    gm = capture(model, (torch.randn(2, 3, 6, 6),))
    keys, names = list(gm.state_dict()), [node.name for node in gm.graph.nodes]
    weights = {key: value.clone() for key, value in gm.state_dict().items()}
    metas = [dict(node.meta) for node in gm.graph.nodes]
    x = torch.randn(3, 3, 6, 6)
    with pytest.raises(GraphError) as error:
        run_passes(gm, (remove_identity, *FOLD, break_half_way))
    assert list(gm.state_dict()) == keys
    assert all(torch.equal(gm.state_dict()[key], value) for key, value in weights.items())
    assert [node.name for node in gm.graph.nodes] == names
    assert [dict(node.meta) for node in gm.graph.nodes] == metas
    assert torch.equal(gm(x), model(x))
    assert torch.equal(gm(x=x), model(x))  # the call signature too
    text = str(error.value)
    assert "pass 'break_half_way' failed: ValueError: cannot go on" in text
    assert "node 'relu'" in text
    assert "test_pipeline.py:" in text
    assert "leave 'break_half_way' out" in text
    assert isinstance(error.value.__cause__, ValueError)
    assert run_passes(gm, (remove_identity, *FOLD))["fold_batch_norm"] == 1  # and it still works


def test_a_graph_that_a_pass_left_broken_is_noticed(model: Net) -> None:
    def use_before_definition(gm: GraphModule) -> int:
        first, *_, last, _ = gm.graph.nodes
        first.append(last)
        return 1

    gm = capture(model, (torch.randn(2, 3, 6, 6),))
    x = torch.randn(2, 3, 6, 6)
    with pytest.raises(GraphError, match="pass 'use_before_definition' failed"):
        run_passes(gm, (use_before_definition,))
    assert torch.equal(gm(x), model(x))


def test_a_graph_that_was_broken_before_is_not_blamed_on_a_pass() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.ReLU(), nn.ReLU()))
    first, *_, last, _ = gm.graph.nodes
    first.append(last)
    with pytest.raises(GraphError, match="the graph was invalid before the first pass"):
        run_passes(gm, SIMPLIFY)


def test_a_pass_can_run_alone(model: Net) -> None:
    gm = fx.symbolic_trace(nn.Sequential(model.conv, model.bn)).eval()
    x = torch.randn(2, 3, 6, 6)
    assert fold_batch_norm(gm) == 1
    assert torch.allclose(gm(x), model.bn(model.conv(x)), atol=1e-5)
