from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx import GraphModule, Node
from torch.nn.utils.parametrizations import weight_norm

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.passes.why_not_fold import why_not_fold
from tests.graph.passes.folding import annotate, check, input_of, reasons, stirred


def test_training_mode() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))).train()
    assert fold_batch_norm(gm) == 0
    assert reasons(gm) == ["_1 is in training mode"]


def test_statistics_of_the_batch() -> None:
    model = stirred(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, track_running_stats=False)))
    gm = check(model, input_of(2), folds=0)
    assert reasons(gm) == ["_1 uses the statistics of the batch (track_running_stats=False)"]


class TwoUses(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.bn, self.other, self.kind = (
            nn.Conv2d(4, 4, 1),
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4),
            kind,
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.kind == "output is used":
            return self.bn(y) + y
        if self.kind == "conv is called twice":
            return self.bn(y) + self.other(self.conv(x + 1))
        if self.kind == "weight is read":
            return self.bn(y) * self.conv.weight.sum()
        return self.bn(y) * self.bn.running_mean.sum()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("output is used", ["conv also feeds add"]),
        (
            "conv is called twice",
            ["conv is shared with conv_1", "conv is shared with conv"],
        ),
        ("weight is read", ["conv is shared with conv_weight"]),
        ("statistics are read", ["the tensors of bn are also used by bn_running_mean"]),
    ],
)
def test_what_something_else_uses(kind: str, expected: list[str]) -> None:
    gm = check(stirred(TwoUses(kind)), input_of(2), folds=0)
    assert reasons(gm) == expected


@pytest.mark.parametrize("after", [True, False])
def test_the_features_of_a_linear_layer_are_not_the_channels_on_three_axes(after: bool) -> None:
    layers = (nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = stirred(nn.Sequential(*(layers if after else layers[::-1])))
    # Channels, length and features are all 4: nothing else would tell.
    x = torch.randn(2, 4, 4, dtype=torch.float64)
    gm = check(model, x, folds=0)
    linear, norm = ("_0", "_1") if after else ("_1", "_0")
    assert reasons(gm) == [f"{linear} works on the last axis of 3, {norm} on axis 1"]


def test_without_the_rank_a_linear_layer_is_not_touched() -> None:
    gm = fx.symbolic_trace(stirred(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))))
    assert fold_batch_norm(gm) == 0
    assert reasons(gm) == ["the rank of _0 is unknown, and only rank 2 is exact; give example inputs"]
    annotate(gm, input_of(0))
    assert fold_batch_norm(gm) == 1


def test_a_convolution_without_batch_axis() -> None:
    model = stirred(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)))
    gm = check(model, torch.randn(3, 4, dtype=torch.float64), folds=0)
    assert reasons(gm) == ["_0 has no batch axis, so axis 1 is not its channels"]


def test_a_switch_of_precision_between_the_two() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.conv(x)
            return self.bn(y)

    model, x = stirred(Mixed()).float(), input_of(2).float()
    gm = capture(model, (x,))
    assert fold_batch_norm(gm) == 0
    assert reasons(gm) == ["_exit_autocast switches between conv and bn"]


def test_hooks_and_computed_weights() -> None:
    def traced(model: nn.Module) -> GraphModule:
        return fx.symbolic_trace(stirred(model))

    hooked = traced(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)))
    hooked.get_submodule("0").register_forward_hook(lambda *_: None)
    assert (fold_batch_norm(hooked), reasons(hooked)) == (0, ["0 has hooks, which would see other values"])
    normed = capture(
        stirred(nn.Sequential(weight_norm(nn.Conv2d(4, 6, 1)), nn.BatchNorm2d(6))), (input_of(2),)
    )
    assert fold_batch_norm(normed) == 0
    (reason,) = reasons(normed)
    assert reason.startswith("the weight of ") and reason.endswith(" is computed in the graph")


def test_a_leaf_that_computes_its_weight_anew() -> None:
    root = stirred(nn.Sequential(weight_norm(nn.Conv2d(4, 6, 1)), nn.BatchNorm2d(6)))
    graph = fx.Graph()
    graph.output(graph.call_module("1", (graph.call_module("0", (graph.placeholder("x"),)),)))
    gm = GraphModule(root, graph)
    assert fold_batch_norm(gm) == 0
    # the class of a parametrized module is made for it, so it may not count as a convolution at all
    assert reasons(gm) in ([], ["0 is parametrized: its weight is computed again in every call"])


def test_a_norm_that_returns_more_than_one_tensor() -> None:
    root = stirred(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)))
    graph = fx.Graph()
    y = graph.call_module("0", (graph.placeholder("x"),))
    tensors = [graph.get_attr(f"1.{name}") for name in ("weight", "bias", "running_mean", "running_var")]
    norm = graph.call_function(torch.native_batch_norm, (y, *tensors, False, 0.1, 1e-5))
    graph.output(norm)
    gm = GraphModule(root, graph)
    assert fold_batch_norm(gm) == 0
    assert reasons(gm) == ["native_batch_norm returns more than the normalised tensor"]


def test_other_numbers_of_channels() -> None:
    root = nn.Module()
    root.conv, root.bn = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(5)
    graph = fx.Graph()
    graph.output(graph.call_module("bn", (graph.call_module("conv", (graph.placeholder("x"),)),)))
    gm = GraphModule(root, graph).eval()
    assert fold_batch_norm(gm) == 0
    assert reasons(gm) == ["bn has 5 channels, conv has 6"]


def test_asking_about_a_pair() -> None:
    def nodes(gm: GraphModule) -> dict[str, Node]:
        return {node.name: node for node in gm.graph.nodes}

    gm = fx.symbolic_trace(stirred(TwoUses("statistics are read")))
    conv, bn, x = (nodes(gm)[name] for name in ("conv", "bn", "x"))
    assert why_not_fold(gm, x, bn) == "x and bn are not a layer and a batch norm"
    assert why_not_fold(gm, bn, conv) == "conv does not read bn"
    plain = fx.symbolic_trace(stirred(TwoUses("output is used")))
    assert why_not_fold(plain, nodes(plain)["conv"], nodes(plain)["bn"]) == "conv also feeds add"
    good = fx.symbolic_trace(stirred(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6))))
    assert why_not_fold(good, nodes(good)["_0"], nodes(good)["_1"]) is None


def test_one_block_under_two_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
            self.second = self.first

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    gm = check(stirred(Twice()), input_of(2), folds=0)
    assert all("is shared" in reason for reason in reasons(gm))
