"""Whatever plain ``torch.fx`` traces is captured, and equal to the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import QTracer, capture
from sparsebit.graph.capture.symbolic.tracer import InputsTracer

Forward = Callable[[nn.Module, Tensor], Any]


class Net(nn.Module):
    """One linear layer and a function around it."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear, x)


# ruff: noqa: RUF005  (adding to a shape is what is tested)
SHAPES: dict[str, Forward] = {
    "view(x.shape)": lambda f, x: f(x).view(x.shape),
    "view(x.size())": lambda f, x: f(x).view(x.size()),
    "reshape(x.shape)": lambda f, x: f(x).reshape(x.shape),
    "torch.reshape(x, shape)": lambda f, x: torch.reshape(f(x), x.shape),
    "expand(x.shape)": lambda f, x: f(x)[:1].expand(x.shape),
    "view(size[:-1] + (2, 2))": lambda f, x: f(x).view(x.size()[:-1] + (2, 2)),
    "view(shape[:-1] + (2, 2))": lambda f, x: f(x).view(x.shape[:-1] + (2, 2)),
    "new_zeros(shape)": lambda f, x: f(x) + x.new_zeros(x.shape),
    "torch.zeros(shape)": lambda f, x: f(x) + torch.zeros(x.shape),
    "torch.ones(shape[:2] + (1,))": lambda f, x: f(x) + torch.ones(x.shape[:2] + (1,)),
    "torch.full((n, 1, 1))": lambda f, x: f(x) + torch.full((x.shape[0], 1, 1), 2.0),
    "broadcast_to": lambda f, x: torch.broadcast_to(f(x)[:1], x.shape),
    "view(n, -1)": lambda f, x: f(x).view(x.size(0), -1),
    "view(n)": lambda f, x: f(x).mean((1, 2)).view(x.size(0)),
    "reshape(n)": lambda f, x: f(x).mean((1, 2)).reshape(x.size(0)),
    "repeat(tuple)": lambda f, x: f(x).repeat((1, 2, 1)),
    "permute(list)": lambda f, x: f(x).permute([0, 2, 1]),
    "unflatten": lambda f, x: f(x).unflatten(2, (2, 2)),
    "view(dtype)": lambda f, x: f(x).view(torch.int32),
    "shape.numel()": lambda f, x: f(x) * x.shape.numel(),
    "numel()": lambda f, x: f(x) / x.numel(),
    "arange(size)": lambda f, x: f(x) + torch.arange(x.size(1))[None, :, None],
    "interpolate": lambda f, x: F.interpolate(f(x), x.shape[-1] * 2),
    "transpose, matmul": lambda f, x: f(x) @ x.transpose(-2, -1),
    "tuple out": lambda f, x: (f(x), x.shape),
    "dict out": lambda f, x: {"y": f(x), "n": x.size(0)},
}


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_what_plain_fx_traces_is_captured_and_equal(name: str) -> None:
    model = Net(SHAPES[name]).eval()
    plain, graph = fx.symbolic_trace(model), capture(model)
    for shape in ((2, 3, 4), (5, 7, 4)):
        x = torch.randn(shape)
        expected = model(x)
        torch.testing.assert_close(graph(x), expected, rtol=0, atol=0)
        torch.testing.assert_close(plain(x), expected, rtol=0, atol=0)
    assert not any(node.op == "call_method" for node in graph.graph.nodes)


def test_sizes_given_one_by_one_to_a_factory_are_followed() -> None:
    model = Net(lambda f, x: f(x).mean(1) + torch.zeros(x.shape[0], 4) + torch.ones(4, 4)[0]).eval()
    graph = capture(model)
    assert torch.equal(graph(torch.ones(3, 2, 4)), model(torch.ones(3, 2, 4)))
    assert torch.zeros is not None and torch.zeros(2, 2).sum() == 0


class Classifier(nn.Module):
    """Every argument has a default, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(
        self,
        ids: Tensor | None = None,
        mask: Tensor | None = None,
        labels: Tensor | None = None,
        scale: float = 2.0,
    ) -> Any:
        if ids is None:
            raise ValueError("ids are needed")
        hidden = self.embed(ids)
        if mask is not None:
            hidden = hidden * mask[..., None]
        return self.head(hidden.sum(1)) * scale


IDS, MASK = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])


def test_arguments_with_defaults_become_inputs_where_the_model_needs_them() -> None:
    model = Classifier().eval()
    graph = capture(model)
    assert torch.equal(graph(IDS, MASK), model(IDS, MASK))
    assert torch.equal(graph(ids=IDS, mask=MASK, labels=None), model(IDS, MASK))
    with pytest.raises(CaptureError, match="argument 'mask' was left out, but the model was traced with it"):
        graph(IDS)
    with pytest.raises(CaptureError, match="argument 'scale' is fixed in the captured graph"):
        graph(IDS, MASK, scale=3.0)


class Encoder(Classifier):
    """A leaf is the first to read the argument, so that nothing refuses its default while it is traced."""

    def forward(self, ids: Tensor | None = None, scale: float = 2.0) -> Any:  # type: ignore[override]
        return self.head(self.embed(ids).sum(1)) * scale


def test_an_argument_that_a_leaf_reads_becomes_an_input() -> None:
    model = Encoder().eval()
    graph = capture(model)
    assert torch.equal(graph(IDS), model(IDS)) and torch.equal(graph(ids=IDS), model(IDS))
    with pytest.raises(CaptureError, match="argument 'ids' was left out, but the model was traced with it"):
        graph()


def test_a_leaf_that_is_given_nothing_is_refused() -> None:
    model = Net(lambda f, x: f(None) + x)
    text = "'linear' of Net would be called with None, the default of an argument"
    with pytest.raises(CaptureError, match=text) as caught:
        capture(model)
    assert "test_tracer.py" in str(caught.value.where) and "example inputs" in str(caught.value.hint)


def test_an_example_decides_which_arguments_are_inputs() -> None:
    model = Classifier().eval()
    graph = capture(model, (IDS,), {"scale": 3.0}, frontend="symbolic")
    assert torch.equal(graph(IDS, scale=3.0), model(IDS, scale=3.0))
    assert [node.target for node in graph.graph.nodes if node.op == "placeholder"] == ["ids"]


def test_the_tracer_of_the_seeds_keeps_patterns_whole() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    targets = [node.target for node in QTracer(["0"]).trace(model).nodes if node.op == "call_module"]
    assert targets == ["0", "1"]


def test_inputs_are_those_asked_for() -> None:
    graph = InputsTracer(["ids"], {"scale": 1.0}, []).trace(Classifier())
    assert [node.target for node in graph.nodes if node.op == "placeholder"] == ["ids"]
