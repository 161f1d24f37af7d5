"""Writes in place: in the graph they mean what they mean in the model, for numbers and for gradients."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsebit.errors import SpecializationWarning
from sparsebit.graph.capture import capture
from sparsebit.graph.effects import assign
from sparsebit.graph.functional import overwrite, set_item
from tests.graph.capture.recording.applies import Applies, Clamps, X, recorded, targets_of

# What a line of a program may do to the tensor a, given another tensor b; returns a new variable or None.
LINES: dict[str, Callable[[Tensor, Tensor], Tensor | None]] = {
    "add_": lambda a, b: _nothing(a.add_(b if b.shape == a.shape else 2.0)),
    "mul_": lambda a, b: _nothing(a.mul_(0.5)),
    "relu_": lambda a, b: _nothing(a.relu_()),
    "clamp_": lambda a, b: _nothing(a.clamp_(-2, 2)),
    "fill_": lambda a, b: _nothing(a.fill_(0.25)),
    "copy_": lambda a, b: _nothing(a.copy_(b if b.shape == a.shape else a * 2)),
    "addcmul_": lambda a, b: _nothing(a.addcmul_(a, a, value=0.1)),
    "index_copy_": lambda a, b: _nothing(a.index_copy_(0, torch.tensor([0]), a[-1:].clone())),
    "zero_ of a part": lambda a, b: _nothing(a.narrow(0, 0, 1).zero_()),
    "data": lambda a, b: _nothing(a.data.add_(1.0)),
    "out=": lambda a, b: _nothing(torch.add(a, 1.0, out=a)),
    "inplace=True": lambda a, b: _nothing(F.relu(a, inplace=True)),
    "set row": lambda a, b: operator.setitem(a, 0, 3.0),
    "set rows": lambda a, b: operator.setitem(a, slice(1, None), a[:-1].clone()),
    "set by mask": lambda a, b: operator.setitem(a, a > 1.0, 0.0),
    "+=": lambda a, b: _nothing(operator.iadd(a, 1.0)),
    "flat view": lambda a, b: a.reshape(-1),
    "row": lambda a, b: a[0] if a.dim() > 1 else a[:2],
    "column": lambda a, b: a[:, 1] if a.dim() > 1 else a[1:],
    "transposed": lambda a, b: a.t() if a.dim() == 2 else a.view(a.shape),
    "rows": lambda a, b: a[:2],
    "chunk": lambda a, b: a.chunk(2, 0)[0],
    "unbound": lambda a, b: a.unbind(0)[0] if a.dim() > 1 else a,
    "detached": lambda a, b: a.detach(),
    "clone": lambda a, b: a.clone(),
    "sum": lambda a, b: a + (b if b.shape == a.shape else 2.0),
}


def _nothing(_: Any) -> None:
    return None


class Program(nn.Module):
    """Lines that write to and look at tensors through each other, starting from a fresh one, an input or a buffer."""

    def __init__(self, lines: list[tuple[str, int, int]], start: str) -> None:
        super().__init__()
        self.lines, self.start = lines, start
        self.register_buffer("buffer", torch.arange(16.0).reshape(4, 4) / 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        variables = [{"fresh": x * 1.0, "input": x, "buffer": self.buffer}[self.start]]
        for line, one, two in self.lines:
            new = LINES[line](variables[one % len(variables)], variables[two % len(variables)])
            variables += [] if new is None else [new]
        return tuple(variables)


lines = st.tuples(st.sampled_from(sorted(LINES)), st.integers(0, 4), st.integers(0, 4))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(lines, min_size=1, max_size=6), st.sampled_from(["fresh", "input", "buffer"]))
def test_writes_mean_in_the_graph_what_they_mean_in_the_model(
    program: list[tuple[str, int, int]], start: str
) -> None:
    model, eager = Program(program, start), Program(program, start)
    x, mine, theirs = X.clone(), X.clone(), X.clone()
    try:
        expected = eager(theirs)
    except RuntimeError:
        return  # torch refuses the program itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecializationWarning)  # some lines take a tensor apart
        graph = capture(model, x)
    assert torch.equal(x, X) and torch.equal(model.buffer, Program([], "").buffer), (
        "capturing changes nothing"
    )
    got = graph(mine)
    assert all(torch.equal(one, two) for one, two in zip(got, expected, strict=True))
    assert torch.equal(mine, theirs) and torch.equal(graph.buffer, eager.buffer), (
        "inputs and buffers change alike"
    )
    graph.graph.lint()


class TrainedProgram(nn.Module):
    """The same lines on the result of a layer, some of them where gradients are off."""

    def __init__(self, lines: list[tuple[str, int, int]], without: list[bool]) -> None:
        super().__init__()
        self.lines, self.without, self.linear = lines, without, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        variables = [self.linear(x) * 1.0]
        for (line, one, two), off in zip(self.lines, self.without, strict=False):
            with torch.set_grad_enabled(not off):
                new = LINES[line](variables[one % len(variables)], variables[two % len(variables)])
            variables += [] if new is None else [new]
        return tuple(variables)

    def gradient(self, module: nn.Module) -> Tensor | None:
        """The weight's gradient after a step of this model, or of a graph of it."""
        self.zero_grad()
        outputs = [output for output in module(X) if output.requires_grad]
        if outputs:
            sum(
                (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum()
                for output in outputs
            ).backward()
        return None if self.linear.weight.grad is None else self.linear.weight.grad.clone()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(lines, min_size=1, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_gradients_pass_writes_in_the_graph_as_in_the_model(
    program: list[tuple[str, int, int]], without: list[bool]
) -> None:
    model = TrainedProgram(program, without)
    try:
        expected = model.gradient(model)
    except RuntimeError:
        return  # torch refuses the program itself
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecializationWarning)  # some lines take a tensor apart
        graph = capture(model, X)
    got = model.gradient(graph)
    assert (got is None) == (expected is None)
    if got is not None:
        torch.testing.assert_close(got, expected)


def test_private_writes_become_new_values() -> None:
    def writes(y: Tensor) -> Tensor:
        y = y.relu_()
        y += 1
        y[:, 0] = 0
        y.copy_(y * 2)
        return torch.add(y, 1, out=y)

    graph = recorded(writes)
    assert not any(node.meta.get("mutates") for node in graph.graph.nodes)
    assert {torch.relu, operator.add, set_item, overwrite} <= set(targets_of(graph))
    assert not graph.capture_report.notes


def test_a_write_through_a_view_stays_a_write_if_the_base_is_read_again() -> None:
    def through_view(y: Tensor) -> Tensor:
        y[:, 0].add_(1)
        return y * 2

    graph = recorded(through_view)
    writes = [node for node in graph.graph.nodes if node.meta.get("mutates")]
    assert [node.target for node in writes] == [Tensor.add_]
    assert [note.text for note in graph.capture_report.notes] == [
        "add_ changes a tensor in place that other code may see"
    ]


def test_a_write_through_a_view_is_a_new_value_if_nobody_looks_at_the_base() -> None:
    graph = recorded(lambda y: y[:, 0].add_(1) * 2)
    assert not any(node.meta.get("mutates") for node in graph.graph.nodes)


def test_writes_that_are_seen_elsewhere_do_not_multiply_the_runs() -> None:
    def runs_for(columns: int) -> int:
        runs = 0

        def fills(y: Tensor) -> Tensor:
            nonlocal runs
            runs += 1
            out = torch.zeros(4, columns)
            for index in range(columns):
                out[:, index].copy_(y[:, 0] * index)
            return out

        model = Applies(fills).eval()
        assert torch.equal(capture(model, X)(X), model(X))
        return runs

    assert runs_for(12) == runs_for(3)


@pytest.mark.parametrize(
    "name",
    ["gt_", "lt_", "ge_", "le_", "eq_", "ne_", "logical_and_", "logical_or_", "logical_xor_", "logical_not_"],
)
def test_comparisons_in_place_keep_their_dtype(name: str) -> None:
    arguments = () if name == "logical_not_" else (torch.ones(4),) if name.startswith("logical") else (0.5,)
    model = Applies(lambda y: getattr(y * 1, name)(*arguments)).eval()
    got, expected = capture(model, X)(X), model(X)
    assert got.dtype is expected.dtype and torch.equal(got, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: (y * 3).long().add_(2),
        lambda y: (y > 0).logical_not_(),
        lambda y: y.mul_((y * 3).long()),
        lambda y: (y * 3).long().mul_(torch.tensor(2)),
        lambda y: (y > 0).bitwise_xor_(y > 1),
        lambda y: y.half().add_(torch.tensor(1.5, dtype=torch.float64)),
        lambda y: y.half().add_(y),
    ],
)
def test_writes_keep_the_dtype_of_what_is_written(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    got, expected = capture(model, X)(X), model(X)
    assert got.dtype is expected.dtype and torch.equal(got, expected)


def test_a_parameter_written_in_forward_is_put_back_and_written_by_the_graph() -> None:
    model = Clamps()
    graph = capture(model, X)
    assert model.weight.tolist() == [-3, 3]
    assert torch.equal(graph(X), X[:2, :2] * torch.tensor([-1.0, 1.0])) and model.weight.tolist() == [-1, 1]


def test_a_replaced_buffer_is_assigned() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return x * self.calls

    model = Counts()
    graph = capture(model, X)
    assert assign in targets_of(graph) and model.calls.item() == 0
    assert torch.equal(graph(X), X) and torch.equal(graph(X), X * 2) and graph.calls.item() == 2
