"""Patterns registered from outside are replaced when a model is simplified, until none matches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError, RegistryError
from sparsebit.graph.capture import capture
from sparsebit.graph.match import Match, Op, Pattern
from sparsebit.graph.ops import op_name
from sparsebit.graph.passes import SIMPLIFY, register_replacement, run_passes, unregister_replacement
from sparsebit.graph.passes.edit import set_module
from sparsebit.graph.passes.replace_patterns import REPLACEMENTS, replace_patterns
from sparsebit.quantization import QuantModel

SILU = Pattern(
    "written_out_silu",
    ops=[
        Op("gate", "sigmoid", inputs=("$x",)),
        Op("product", "mul", inputs=("$x", "gate"), commutative=True),
    ],
)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = set(REPLACEMENTS)
    yield
    for name in set(REPLACEMENTS) - before:
        unregister_replacement(name)


def use_silu(gm: GraphModule, match: Match) -> Node:
    return gm.graph.call_function(F.silu, (match.values["x"],))


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), Swish()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.b(self.act(self.a(x))))  # type: ignore[no-any-return]


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def operators(gm: GraphModule) -> list[str | None]:
    return [op_name(gm, node) for node in gm.graph.nodes if node.op.startswith("call_")]


def test_every_match_is_replaced_and_what_it_leaves_is_pruned() -> None:
    register_replacement(SILU)(use_silu)
    model = Net().eval()
    gm = capture(model, X)
    assert run_passes(gm, SIMPLIFY)["replace_patterns"] == 2
    assert operators(gm) == ["conv2d", "silu", "conv2d", "silu"]
    torch.testing.assert_close(gm(X), model(X))


def test_a_quantized_model_is_simplified_by_them_too() -> None:
    register_replacement(SILU)(use_silu)
    qmodel = QuantModel(Net().eval(), "int8_onnxruntime", example_inputs=(X,))
    gates = [node.name for node in qmodel.model.graph.nodes if node.name.endswith("_gate")]
    assert gates == ["silu_gate", "silu_1_gate"]  # it is a silu until the target takes it apart


def test_a_match_by_class_may_bring_a_module_and_refuse_with_a_check() -> None:
    class Scale(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x: Tensor) -> Tensor:
            return x * self.by

    def is_one(gm: GraphModule, node: Node) -> str | None:
        return None if gm.get_submodule(str(node.target)).by == 1 else "it scales"

    @register_replacement(Pattern("unit_scale", ops=[Op("scale", Scale, check=is_one)]))
    def as_identity(gm: GraphModule, match: Match) -> Node:
        path = f"{match['scale'].target}"
        set_module(gm, path, nn.Hardtanh(-9, 9))
        return gm.graph.call_module(path, match["scale"].args)

    model = nn.Sequential(Scale(1.0), nn.Linear(4, 4), Scale(2.0)).eval()
    gm = capture(model, torch.ones(2, 4), skip=["0", "2"])
    assert replace_patterns(gm) == 1
    assert operators(gm) == ["hardtanh", "linear", None] and type(model[0]) is Scale
    torch.testing.assert_close(gm(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_they_are_repeated_until_none_matches() -> None:
    @register_replacement(Pattern("two_negations", ops=[Op("a", "neg"), Op("b", "neg", inputs=("a",))]))
    def drop(gm: GraphModule, match: Match) -> Node:
        return gm.graph.call_function(torch.clone, (match["a"].args[0],))

    @register_replacement(Pattern("clone", ops=[Op("copy", "clone")]))
    def skip(gm: GraphModule, match: Match) -> Node:
        (source,) = match["copy"].args
        assert isinstance(source, Node)
        return source if source.op != "placeholder" else gm.graph.call_function(torch.positive, (source,))

    gm = torch.fx.symbolic_trace(lambda x: torch.neg(torch.neg(torch.neg(torch.neg(x)))))
    assert replace_patterns(gm) > 0
    assert "clone" not in operators(gm)


def test_a_replacement_that_matches_its_own_result_is_an_error() -> None:
    @register_replacement(Pattern("again", ops=[Op("relu", "relu", inputs=("$x",))]))
    def again(gm: GraphModule, match: Match) -> Node:
        return gm.graph.call_function(torch.relu, (match.values["x"],))

    with pytest.raises(GraphError, match="replacement 'again' still matches after 100 rounds"):
        replace_patterns(torch.fx.symbolic_trace(lambda x: torch.relu(x)))


def test_wrong_registrations_are_refused() -> None:
    register_replacement(SILU)(use_silu)
    with pytest.raises(RegistryError, match="already taken"):
        register_replacement(SILU)(use_silu)

    @register_replacement(Pattern("nothing", ops=[Op("relu", "relu")]))
    def nothing(gm: GraphModule, match: Match) -> Node:
        return None  # type: ignore[return-value]

    with pytest.raises(GraphError, match="'nothing' built no node"):
        replace_patterns(torch.fx.symbolic_trace(lambda x: torch.relu(x)))


def test_an_operator_that_does_not_exist_is_an_error() -> None:
    """It would never match, and nothing would say so."""
    register_replacement(Pattern("typo", ops=[Op("act", "sigmoyd")]))(use_silu)
    with pytest.raises(RegistryError, match=r"no operator named 'sigmoyd'[\s\S]*did you mean 'sigmoid'"):
        replace_patterns(capture(nn.ReLU(), torch.zeros(1)))
