"""The front-end over ``torch.export``: programs given, and models exported on request."""

from __future__ import annotations

import copy
import operator
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import CapturedModule, ModeConstant, capture
from sparsebit.graph.value import TensorInfo

X = torch.randn(3, 4)


class Small(nn.Module):
    """Modules, functions, sizes, and state of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("offset", torch.randn(4))
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, x: Tensor, shift: Tensor | None = None) -> dict[str, Any]:
        y = self.body(x) * self.scale + self.offset * self.mask
        y = y.view(x.size(0), 2, -1).transpose(1, 2).reshape(x.size(0), -1).softmax(-1)
        return {"y": y if shift is None else y + shift, "parts": [y.mean(), None]}


def export(model: nn.Module, *args: Any, **options: Any) -> ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own internals
        return torch.export.export(model, args, **options)


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
        == "an exported program holds the mode it was exported in; capture the module itself to have both"
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
    with pytest.raises(CaptureError, match="has another structure"):
        graph({"a": X}, scale=X)


def test_operators_are_in_the_normal_form() -> None:
    graph = capture(export(Small().eval(), X))
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert {operator.mul, operator.add, Tensor.view, torch.transpose, torch.reshape, torch.softmax} <= targets
    assert not any(node.op == "call_method" for node in graph.graph.nodes)
    values = [node.meta["value"] for node in graph.graph.nodes if node.target is torch.softmax]
    assert values == [TensorInfo((3, 4), torch.float32)]


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


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def filled(y: Tensor) -> Tensor:
    y[:, 0] = 0
    return y * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y.relu_().add_(1) * y,
        filled,
        lambda y: y[1:, ::2][..., None].squeeze(-1) + y[0, 1],
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


def test_a_copy_and_a_pickle_of_an_exported_graph() -> None:
    graph = capture(Small().eval(), X, frontend="exported")
    for copied in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert torch.equal(copied(X)["y"], graph(X)["y"])
