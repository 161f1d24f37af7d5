from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError
from sparsebit.graph.match import Match, NodeIndex, Op, Pattern, find_matches, scan

CONV_BN = Pattern(
    "conv_bn",
    ops=[Op("conv", ("conv1d", "conv2d", "conv3d")), Op("bn", "batch_norm", inputs=("conv",))],
)


def names(matches: list[Match]) -> list[dict[str, str]]:
    return [{name: node.name for name, node in match.nodes.items()} for match in matches]


def trace(forward: object) -> GraphModule:
    return fx.symbolic_trace(forward)


class Block(nn.Module):
    def __init__(self, *, reuse: bool = False) -> None:
        super().__init__()
        self.conv, self.bn, self.reuse = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), reuse

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.bn(y) + y if self.reuse else self.bn(y)


def test_a_chain_is_found_by_canonical_name_from_modules_and_functions() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(4)
            self.weight = nn.Parameter(torch.zeros(4, 3, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(F.conv1d(bias=None, weight=self.weight, input=x))

    assert names(find_matches(trace(Block()), CONV_BN)) == [{"conv": "conv", "bn": "bn"}]
    assert names(find_matches(trace(Functional()), CONV_BN)) == [{"conv": "conv1d", "bn": "bn"}]


def test_an_interior_node_with_another_user_is_refused_unless_it_may_be_shared() -> None:
    gm = trace(Block(reuse=True))
    assert find_matches(gm, CONV_BN) == []
    _, (refusal,) = scan(gm, CONV_BN)
    assert (refusal.node.name, refusal.reason) == ("conv", "conv also feeds add")
    assert str(refusal) == "conv_bn at conv: conv also feeds add"
    sharing = Pattern("conv_bn", ops=[Op("conv", "conv2d", shared=True), CONV_BN.ops[1]])
    assert len(find_matches(gm, sharing)) == 1


def test_commutative_inputs_match_in_either_order_and_others_only_as_written() -> None:
    def pattern(commutative: bool) -> Pattern:
        join = Op("join", ("add", "sub"), inputs=("relu", "*"), commutative=commutative)
        return Pattern("relu_join", ops=[Op("relu", "relu"), join])

    left = trace(lambda x: torch.relu(x) + torch.sigmoid(x))
    right = trace(lambda x: torch.sigmoid(x) + torch.relu(x))
    assert [len(find_matches(gm, pattern(True))) for gm in (left, right)] == [1, 1]
    assert [len(find_matches(gm, pattern(False))) for gm in (left, right)] == [1, 0]


def test_the_number_of_activations_must_agree_unless_an_ellipsis_allows_more() -> None:
    one = Pattern("cat", ops=[Op("relu", "relu"), Op("cat", "cat", inputs=("relu",))])
    more = Pattern("cat", ops=[Op("relu", "relu"), Op("cat", "cat", inputs=("relu", ...))])
    gm = trace(lambda x: torch.cat([torch.relu(x), x, x], 1))
    assert (len(find_matches(gm, one)), len(find_matches(gm, more))) == (0, 1)
    scalar = Pattern("add", ops=[Op("add", "add", inputs=("*", "*"))])
    assert find_matches(trace(lambda x: x + 1), scalar) == []


def test_the_same_node_is_not_two_operators_of_a_match() -> None:
    twice = Pattern("twice", ops=[Op("a", "relu"), Op("b", "relu"), Op("c", "add", inputs=("a", "b"))])

    def double(x: Tensor) -> Tensor:
        y = torch.relu(x)
        return y + y

    assert find_matches(trace(double), twice) == []
    assert len(find_matches(trace(lambda x: torch.relu(x) + torch.relu(x)), twice)) == 1


def test_a_named_value_must_be_the_same_everywhere() -> None:
    class Gated(nn.Module):
        def __init__(self, same: bool) -> None:
            super().__init__()
            self.gate, self.up, self.same = nn.Linear(4, 4), nn.Linear(4, 4), same

        def forward(self, x: Tensor) -> Tensor:
            return self.up(x if self.same else x * 2) * F.silu(self.gate(x))

    swiglu = Pattern(
        "swiglu",
        ops=[
            Op("gate", "linear", inputs=("$x",)),
            Op("up", "linear", inputs=("$x",)),
            Op("act", "silu", inputs=("gate",)),
            Op("out", "mul", inputs=("act", "up"), commutative=True),
        ],
    )
    (match,) = find_matches(trace(Gated(same=True)), swiglu)
    assert {name: node.name for name, node in match.nodes.items()} == {
        "gate": "gate",
        "up": "up",
        "act": "silu",
        "out": "mul",
    }
    assert match.values["x"].name == "x"
    assert find_matches(trace(Gated(same=False)), swiglu) == []


def test_predicates_refuse_with_their_reason() -> None:
    gm = trace(Block())
    by_node = Pattern(
        "by_node", ops=[Op("conv", "conv2d", check=lambda gm, node: f"{node.name} is small"), CONV_BN.ops[1]]
    )
    _, (refusal,) = scan(gm, by_node)
    assert (refusal.node.name, refusal.reason) == ("conv", "conv is small")

    def whole(gm: GraphModule, match: Match) -> str | None:
        return f"{match['conv'].name} before {match['bn'].name}"

    _, (refusal,) = scan(gm, Pattern("by_match", ops=CONV_BN.ops, check=whole))
    assert (refusal.node.name, refusal.reason) == ("bn", "conv before bn")


def test_a_refused_arrangement_does_not_hide_an_accepted_one() -> None:
    def not_sigmoid(gm: GraphModule, node: Node) -> str | None:
        return "sigmoid" if node.target is torch.sigmoid else None

    pattern = Pattern(
        "either",
        ops=[
            Op("a", ("relu", "sigmoid"), check=not_sigmoid),
            Op("add", "add", inputs=("a", "*"), commutative=True),
        ],
    )
    matches, refusals = scan(trace(lambda x: torch.sigmoid(x) + torch.relu(x)), pattern)
    assert names(matches) == [{"a": "relu", "add": "add"}]
    assert refusals == []


def test_matches_do_not_overlap_and_come_in_graph_order() -> None:
    pattern = Pattern("pair", ops=[Op("a", "relu"), Op("b", "relu", inputs=("a",))])

    def forward(x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.relu(x)
        return x

    assert names(find_matches(trace(forward), pattern)) == [
        {"a": "relu", "b": "relu_1"},
        {"a": "relu_2", "b": "relu_3"},
    ]


def test_any_operator_matches_unknown_ones_too() -> None:
    def mystery(x: Tensor) -> Tensor:
        return x

    graph = fx.Graph()
    out = graph.call_function(torch.relu, (graph.call_function(mystery, (graph.placeholder("x"),)),))
    graph.output(out)
    gm = GraphModule(nn.Module(), graph)
    pattern = Pattern("any_relu", ops=[Op("any"), Op("relu", "relu", inputs=("any",))])
    assert names(find_matches(gm, pattern)) == [{"any": "mystery", "relu": "relu"}]


def test_a_pattern_of_operators_the_graph_lacks_looks_at_each_node_once() -> None:
    gm = trace(nn.Sequential(*[nn.ReLU() for _ in range(100)]))
    index = NodeIndex(gm)
    assert find_matches(gm, CONV_BN, index) == []
    assert index.visits == len(gm.graph.nodes)


def residual_graph(blocks: int) -> GraphModule:
    """conv → bn → relu → add, ``blocks`` times: four nodes a block."""
    graph, root = fx.Graph(), nn.Module()
    root.conv, root.bn = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)
    x = graph.placeholder("x")
    bias = graph.call_function(torch.neg, (x,))  # one value with a user in every block
    for _ in range(blocks):
        y = graph.call_module("bn", (graph.call_module("conv", (x,)),))
        x = graph.call_function(operator.add, (bias, graph.call_function(torch.relu, (y,))))
    graph.output(x)
    return GraphModule(root, graph)


def test_the_work_is_linear_in_the_graph() -> None:
    pattern = Pattern(
        "residual",
        ops=[
            Op("conv", "conv2d"),
            Op("bn", "batch_norm", inputs=("conv",)),
            Op("relu", "relu", inputs=("bn",)),
            Op("add", "add", inputs=("relu", "$skip"), commutative=True),
        ],
    )
    visits = {}
    for blocks in (250, 500, 1000):
        gm = residual_graph(blocks)
        index = NodeIndex(gm)
        assert len(find_matches(gm, pattern, index)) == blocks
        visits[len(gm.graph.nodes)] = index.visits
    assert max(visits) > 4000
    for nodes, count in visits.items():
        assert count <= 4 * nodes, visits
    small, middle, large = visits.values()
    assert large - middle == 2 * (middle - small)  # exactly a straight line


@pytest.mark.parametrize(
    ("ops", "complaint"),
    [
        ([], "has no operators"),
        ([Op("a"), Op("a")], "has two operators called 'a'"),
        ([Op("conv"), Op("bn", inputs=("covn",))], "did you mean 'conv'?"),
        (
            [Op("bn", inputs=("conv",)), Op("conv")],
            "'bn' reads 'conv', which is not an operator listed before it",
        ),
        ([Op("$x")], "cannot name an operator '$x'"),
        ([Op("a"), Op("b", inputs=(..., "a"))], "has '...' before its last input"),
        ([Op("a"), Op("b")], "has several results: a, b"),
    ],
)
def test_a_wrong_pattern_is_refused_when_built(ops: list[Op], complaint: str) -> None:
    with pytest.raises(GraphError) as error:
        Pattern("wrong", ops=ops)
    assert "pattern 'wrong'" in str(error.value)
    assert complaint in str(error.value)
