"""The front-end over ``torch.export``: programs given, and models exported on request."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import CapturedModule, ModeConstant, capture
from tests.graph.capture.exported.models import Small, export

X = torch.randn(3, 4)


# -- a program -------------------------------------------------------------------------------------


def test_a_program_keeps_names_state_and_structure() -> None:
    model = Small().eval()
    graph = capture(export(model, X, dynamic_shapes={"x": {0: Dim.AUTO}}))
    assert isinstance(graph, CapturedModule) and graph.capture_report.frontend == "exported"
    assert list(graph.state_dict()) == list(model.state_dict())
    for x in (X, torch.randn(5, 4)):
        got, expected = graph(x), model(x)
        assert torch.equal(got["y"], expected["y"]) and torch.equal(got["parts"][0], expected["parts"][0])
        assert got["parts"][1] is None


def test_a_program_does_not_switch_its_mode() -> None:
    graph = capture(export(Small().eval(), X))
    with pytest.raises(CaptureError, match="cannot switch to training mode") as error:
        graph.train()
    assert (
        error.value.where
        == "an exported program contains only the mode it was exported in; capture the module to have both modes"
    )


def test_a_program_of_nested_and_keyword_inputs() -> None:
    class Nested(nn.Module):
        def forward(self, batch: dict[str, Any], *, scale: Tensor) -> Tensor:
            return batch["a"] * scale - batch["rest"][0]

    batch, scale = {"a": X, "rest": [X + 1]}, X + 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Nested(), (batch,), {"scale": scale})
    graph = capture(program)
    assert torch.equal(graph({"a": X * 2, "rest": [X]}, scale=X), X * 2 * X - X)
    with pytest.raises(CaptureError, match="has a different structure"):
        graph({"a": X}, scale=X)


# -- a model, exported on request ------------------------------------------------------------------


def test_a_model_gets_its_modules_and_both_modes_back() -> None:
    model = Small().eval()
    graph = capture(model, X, frontend="exported")
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_module"] == [
        "body.0",
        "body.1",
        "body.2",
    ]
    assert list(graph.state_dict()) == list(model.state_dict()) and graph.scale is model.scale
    assert same_in_both_modes(graph, model)
    assert model.body[1].inplace is True, "the model is left as it was"


def same_in_both_modes(graph: nn.Module, model: nn.Module) -> bool:
    equal = True
    for mode in (False, True, False):
        graph.train(mode)
        eager = copy.deepcopy(model).train(mode)
        for x in (X, torch.randn(6, 4)):
            results = []
            for module in (graph, eager):
                torch.manual_seed(0)
                results.append(module(x)["y"])
            equal &= torch.equal(*results)
    return equal


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": F.dropout(self.linear(x), 0.5, self.training)}


def test_a_functional_dropout_follows_the_mode() -> None:
    model = FunctionalDropout().eval()
    graph = capture(model, X, frontend="exported")
    assert [m() for m in graph.modules() if isinstance(m, ModeConstant)] == [False]
    assert same_in_both_modes(graph, model)


def test_two_placeholders_given_one_tensor_stay_independent() -> None:
    class Minus(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a - b

    graph = capture(Minus(), (X, X), frontend="exported")
    assert torch.equal(graph(X, X + 1), X - (X + 1))


def test_an_in_place_activation_is_a_copy_of_the_models() -> None:
    model = Small().eval()
    graph = capture(model, X, frontend="exported")
    assert (
        graph.get_submodule("body.1") is not model.body[1] and graph.get_submodule("body.1").inplace is True
    )


def test_a_refusal_names_the_line_and_the_way_out() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match=r"torch.export refused Branches") as error:
        capture(Branches(), X, frontend="exported")
    assert "return x if x.sum() > 0 else -x" in str(error.value.where)
    assert "use the default front-end" in str(error.value.hint)


def test_inputs_that_do_not_fit_are_told() -> None:
    with pytest.raises(CaptureError, match=r"torch.export refused Small"):
        capture(Small(), (X, X, X), frontend="exported")


def test_a_structure_that_depends_on_the_mode_is_refused_at_the_switch() -> None:
    class TwoFaced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() if self.training else x.tanh()

    graph = capture(TwoFaced().eval(), X, frontend="exported")
    with pytest.raises(CaptureError, match="cannot switch to training mode"):
        graph.train()


def test_a_copy_and_a_pickle_of_an_exported_graph() -> None:
    graph = capture(Small().eval(), X, frontend="exported")
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert torch.equal(copied(X)["y"], graph(X)["y"])
