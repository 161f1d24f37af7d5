"""What is given to capture: wrappers of torch come off, wrong objects are refused with one message each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsebit
from sparsebit.errors import CaptureError
from sparsebit.graph.capture.unwrap import unwrap

X = torch.randn(3, 4)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def scripted(make: Callable[[nn.Module], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        return make(net())


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_wrappers_of_torch_come_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    wrapped = wrap(net())
    model = unwrap(wrapped)
    x = X.to(next(model.parameters()).device)
    graph = sparsebit.capture(wrapped, x)
    assert type(model) is nn.Sequential and torch.equal(graph(x), model(x))
    assert list(graph.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda model: torch.jit.trace(model, X)], ids=["script", "trace"]
)
def test_torchscript_is_refused(make: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(CaptureError, match=r"next: +pass the module that was given to torch\.jit\.script"):
        sparsebit.capture(scripted(make), X)


@pytest.mark.parametrize("frontend", ["record", "symbolic"])
def test_a_torchscript_part_stays_one_node(frontend: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), scripted(torch.jit.script)).eval()
    graph = sparsebit.capture(model, X, frontend=frontend)
    assert torch.equal(graph(X), model(X)) and list(graph.state_dict()) == list(model.state_dict())
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1"]
    quantized = sparsebit.QuantModel(model, "int8_onnxruntime", example_inputs=(X,))
    quantized.calibrate([X], progress=False)


def test_an_exported_program_has_a_module() -> None:
    program = torch.export.export(net(), (X,))
    with pytest.raises(CaptureError, match=r"pass program\.module\(\)"):
        unwrap(program)
    assert torch.equal(sparsebit.capture(program)(X), program.module()(X))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (torch.relu, "wrap a function in a module"),
        (nn.ReLU, r"pass an object of the class: ReLU\(\.\.\.\)"),
        ("model.pt", "build the model and load its weights into it"),
        ({"weight": X}, "build the model and load its weights into it"),
        (X, "got: a Tensor$"),
    ],
)
def test_what_is_passed_in_place_of_a_module_is_refused(wrong: Any, told: str) -> None:
    with pytest.raises(CaptureError, match=told):
        unwrap(wrong)


def test_a_lazy_parameter_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"parameter '1\.weight' has no shape yet"):
        unwrap(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3)))


def test_a_class_says_why_it_cannot_be_captured() -> None:
    class Holder(nn.Module):
        why_not_capture = "pass holder.model"

        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(CaptureError, match=r"a Holder cannot be captured again\n +next: pass holder\.model"):
        sparsebit.capture(Holder(), X)


def test_a_model_made_in_inference_mode_stays_there() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
        assert unwrap(model) is model
    with pytest.raises(CaptureError, match=r"'weight' was created in torch.inference_mode\(\)"):
        unwrap(model)
