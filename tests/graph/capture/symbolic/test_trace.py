"""Tracing without inputs: what is traced, what is fixed, what is refused."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import QTracer, capture
from tests.graph.capture.nets import Dropping

X = torch.randn(3, 4)


def model_of(forward: Callable[..., Any]) -> nn.Module:
    return type("Model", (nn.Module,), {"forward": forward})()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.Sequential(nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x)) + x


# -- QTracer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "targets"),
    [
        ((), ["0.linear", "0.act.0", "1.linear", "1.act.0"]),
        (["0"], ["0", "1.linear", "1.act.0"]),
        (["?.act"], ["0.linear", "0.act", "1.linear", "1.act"]),
        (["*"], ["0", "1"]),
    ],
)
def test_torch_modules_and_named_modules_are_leaves(patterns: Any, targets: list[str]) -> None:
    graph = QTracer(patterns).trace(nn.Sequential(Block(), Block()))
    assert [str(node.target) for node in graph.nodes if node.op == "call_module"] == targets


def test_nodes_know_their_module_and_line() -> None:
    graph = QTracer().trace(nn.Sequential(Block()))
    add = next(node for node in graph.nodes if node.target is operator.add)
    assert add.meta["module_path"] == "0" and add.meta["source"].function == "Block.forward"
    assert add.meta["source"].filename == __file__


def test_patterns_are_matched_against_dotted_names() -> None:
    tracer = QTracer()
    assert tracer._probe("encoder.layer.0", ["encoder.*"]) and not tracer._probe("decoder", ["encoder.*", ""])


# -- inputs ----------------------------------------------------------------------------------------


def optional(
    self: Any, a: Tensor, mask: Tensor | None = None, *, b: Tensor, scale: float = 2.0, **options: Any
) -> Tensor:
    y = a - b * scale
    return y if mask is None else y * mask


def test_optional_arguments_keep_their_defaults() -> None:
    graph = capture(model_of(optional))
    assert [node.target for node in graph.graph.nodes if node.op == "placeholder"] == ["a", "b"]
    assert torch.equal(graph(X, b=X), X - X * 2) and torch.equal(
        graph(a=X, b=X, mask=None, scale=2.0), X - X * 2
    )
    with pytest.raises(CaptureError, match="argument 'mask' is fixed in the captured graph"):
        graph(X, X, b=X)
    with pytest.raises(CaptureError, match="argument 'scale' is fixed in the captured graph"):
        graph(X, b=X, scale=3.0)
    with pytest.raises(CaptureError, match="argument 'options' is fixed in the captured graph"):
        graph(X, b=X, extra=1)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, a, b: {"x": [a + b, (a, None)], "n": 3},
        lambda self, a, b: (a, b),
        lambda self, a, b: a,
        lambda self, a, b: [a * 2, {"deep": b}],
    ],
)
def test_outputs_are_rebuilt(forward: Callable[..., Any]) -> None:
    graph, expected = capture(model_of(forward)), forward(None, X, X + 1)
    got = graph(X, X + 1)
    assert repr(got) == repr(expected) and type(got) is type(expected)


# -- what it computes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: x.view(x.size(0), -1).transpose(0, 1).contiguous() + 1,
        lambda self, x: x.reshape(x.shape[0] * 2, x.shape[1] // 2).softmax(-1),
        lambda self, x: torch.cat([x, -x], 1).chunk(2, dim=1)[1].sum(dim=1, keepdim=True) ** 2,
        lambda self, x: (
            x[:, None, 1:].expand(-1, 2, -1).permute(0, 2, 1).flatten(1).masked_fill(torch.tensor(True), 0.0)
        ),
        lambda self, x: (
            (x > 0).float() * 2 - x.clamp(min=0.0).mul(3).add(1, alpha=2) / x.norm(dim=1, keepdim=True)
        ),
        lambda self, x: x.relu_() + F.relu(x, inplace=True),
        lambda self, x: x.split([1, 3], dim=1)[1].to(torch.float64).type(torch.float32),
        lambda self, x: 1 - x + 2 * x / (2**x) % 3,
        lambda self, x: F.pad(x, (1, 1)).unsqueeze(0).repeat(2, 1, 1).new_zeros(2),
        lambda self, x: x.T @ x + x.shape[-1],
    ],
)
def test_symbolic_gives_the_models_numbers(forward: Callable[..., Any]) -> None:
    graph = capture(model_of(forward))
    assert not any(node.op == "call_method" for node in graph.graph.nodes)
    for x in (X, torch.randn(5, 4)):
        assert torch.equal(graph(x.clone()), forward(None, x.clone()))


def test_split_by_keyword() -> None:
    assert torch.equal(capture(model_of(lambda self, x: x.split(split_size=2, dim=1)[0]))(X), X[:, :2])


def test_writes_are_marked() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        return F.relu(y, inplace=True)

    graph = capture(model_of(forward))
    assert [node.target for node in graph.graph.nodes if node.meta.get("mutates")] == [Tensor.add_, F.relu]
    assert torch.equal(graph(X), torch.relu(X * 2 + 1))


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.table = torch.arange(4.0)
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.inner.table + torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_plain_tensors_become_buffers_outside_the_state_dict() -> None:
    model = Holds()
    graph = capture(model)
    assert list(graph.state_dict()) == ["weight"] and torch.equal(graph(X), model(X))
    ops = [node.op for node in graph.graph.nodes]
    assert ops[:1] == ["placeholder"] and ops[1 : 1 + ops.count("get_attr")] == ["get_attr"] * ops.count(
        "get_attr"
    )
    assert not [name for name in vars(model) if name.startswith("_tensor_constant")], (
        "nothing is left on the model"
    )


@pytest.mark.parametrize("captured_in", [True, False])
def test_what_depends_on_the_mode_follows_it(captured_in: bool) -> None:
    model = Dropping().train(captured_in)
    graph = capture(model)
    for mode in (True, False, True):
        results = []
        for module in (graph.train(mode), model.train(mode)):
            torch.manual_seed(0)
            results.append(module(X))
        assert torch.equal(*results)


def test_a_structure_that_depends_on_the_mode_is_refused_at_the_switch() -> None:
    graph = capture(model_of(lambda self, x: x.relu() if self.training else x.tanh()).eval())
    with pytest.raises(CaptureError, match="cannot switch to training mode"):
        graph.train()


# -- refusals --------------------------------------------------------------------------------------


def test_control_flow_is_refused_with_its_line() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(
        CaptureError, match="Model cannot be traced without running it: symbolically traced variables"
    ) as error:
        capture(model_of(forward))
    assert "if x.sum() > 0:" in str(error.value.where)
    assert "sparsebit.capture(model, (x,))" in str(error.value.hint) and "skip=" in str(error.value.hint)


def test_writing_to_a_buffer_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return x * 2

    model = Counts()
    with pytest.raises(
        CaptureError, match="Counts writes to its buffer 'calls', which tracing without inputs cannot see"
    ):
        capture(model)
    assert model.calls.item() == 0


def test_a_buffer_with_nan_is_not_refused() -> None:
    class HasNan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("unset", torch.tensor(float("nan")))

        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    capture(HasNan())


def test_a_skipped_module_hides_what_cannot_be_traced() -> None:
    class Clipped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    model = nn.Sequential(nn.Linear(4, 4), Clipped())
    graph = capture(model, skip=["1"])
    assert torch.equal(graph(X), model(X)) and torch.equal(graph(-X), model(-X))


def test_variable_arguments_are_inputs_where_the_model_reads_them() -> None:
    def collects(self: nn.Module, x: Tensor, *rest: Tensor, flag: bool = False, **named: Tensor) -> Tensor:
        return x + rest[0] * rest[1] - named["bias"]

    model = model_of(collects)
    graph = capture(model, frontend="symbolic")
    assert torch.equal(graph(X, X, 2 * X, bias=3 * X), model(X, X, 2 * X, bias=3 * X))
    with pytest.raises(IndexError):  # as the model itself
        graph(X, X, bias=X)
    # Those that it only passes by are not.
    ignoring = capture(model_of(lambda self, x, *rest, **named: x + 1), frontend="symbolic")
    assert [node.name for node in ignoring.graph.find_nodes(op="placeholder")] == ["x"]


def test_an_argument_can_be_called() -> None:
    model = model_of(lambda self, x, act: act(x) + 1)
    graph = capture(model, frontend="symbolic")
    assert torch.equal(graph(X, torch.relu), model(X, torch.relu))
