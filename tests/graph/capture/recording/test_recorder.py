"""What the recorder sees: writes in place, numbers that leave the graph, chance, constants, gradients."""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.effects import assign
from sparsebit.graph.functional import overwrite, set_item

X = torch.randn(4, 4)


class Applies(nn.Module):
    """A linear layer and a function of its result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def recorded(function: Callable[[Tensor], Any], **options: Any) -> CapturedModule:
    return capture(Applies(function).eval(), X, **options)


def targets_of(graph: CapturedModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


# -- writes in place -------------------------------------------------------------------------------

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
        "add_ changes a tensor in place that others may see"
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


class Clamps(nn.Module):
    """Keeps its own weight in range before it uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([-3.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x[:2, :2] * self.weight


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


# -- numbers that leave the graph ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda y: y if y.sum() > 0 else -y, "a branch on a tensor's value"),
        (lambda y: y * y.sum().item(), r"item\(\): a tensor's value as a Python number"),
        (lambda y: y * int(y.sum()), r"int\(\): a tensor's value as a Python number"),
        (lambda y: y * float(y.sum()), r"float\(\): a tensor's value as a Python number"),
        (lambda y: [y, -y][y.sum().long() * 0], "a tensor's value as an index"),
        (lambda y: torch.tensor(y.tolist()), r"tolist\(\): a tensor's values as Python numbers"),
        (lambda y: torch.from_numpy(y.detach().numpy()), r"numpy\(\): a tensor's values outside torch"),
        (lambda y: torch.from_numpy(numpy.asarray(y.detach()) * 2), "a tensor's value"),
        (lambda y: y if torch.equal(y, y) else -y, "equal: a tensor's value outside the graph"),
        (lambda y: y if torch.allclose(y, y) else -y, "allclose: a tensor's value outside the graph"),
        (
            lambda y: sum(row for row in y[y.sum(1) < 1e9]),
            "a Python loop over rows whose number depends on the data",
        ),
        (lambda y: y * len([row for row in torch.nonzero(y > -1e9)]), "a Python loop over rows"),
        (lambda y: y if (y > 0).any() and (y < 9).all() else -y, "a branch on a tensor's value"),
        (lambda y: y if max(y[0]) > 0 else -y, "a branch on a tensor's value"),
        (lambda y: {True: y, False: -y}[bool(y.max() < 1e9)], "a branch on a tensor's value"),
    ],
)
def test_a_number_taken_from_the_inputs_is_refused(function: Callable[[Tensor], Any], text: str) -> None:
    with pytest.raises(CaptureError, match=f"the model's control flow depends on its input data: .*{text}"):
        recorded(function)
    with pytest.warns(SpecializationWarning, match=f"{text}.* was fixed to what the example inputs gave"):
        graph = recorded(function, on_data="specialise")
    with torch.no_grad():
        assert graph(X).shape == Applies(function)(X).shape


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * torch.tensor(2.0).item(),
        lambda y: y * int(torch.ones(3).sum()),
        lambda y: y if torch.zeros(3, device=y.device).any() else -y,
        lambda y: y * float(y.new_full((1,), 3.0)),
        lambda y: y.view(*torch.tensor([2, 8]).tolist()),
        lambda y: y if y.is_floating_point() and y.dim() == 2 and y.is_contiguous() else -y,
        lambda y: y * y.stride(1) * y.element_size(),
        lambda y: (str(y), repr(y), f"{y.shape}", y)[-1],
        lambda y: y if y is not None and y in [y] else -y,
        lambda y: y[y.sum(1) > 0],
        lambda y: torch.where(y > 0, y, -y)[torch.nonzero(y[:, 0] < 99)[:, 0]],
    ],
)
def test_numbers_that_do_not_come_from_the_inputs_are_constants(function: Callable[[Tensor], Any]) -> None:
    model = Applies(function).eval()
    graph = capture(model, X)
    assert not graph.capture_report.of_kind("data", "random")
    assert torch.equal(graph(X * 2), model(X * 2))


def test_comparing_a_tensor_with_none_is_no_read() -> None:
    model = Applies(lambda y: y if y == None else -y).eval()  # noqa: E711
    assert torch.equal(capture(model, X)(X), model(X))


# -- chance ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(1),
        lambda: torch.randn(1).abs().clamp(max=0.5),
        lambda: torch.randint(0, 1, (1,)),
        lambda: torch.rand_like(torch.ones(1)),
        lambda: torch.bernoulli(torch.zeros(1)),
        lambda: torch.normal(torch.zeros(1), 0.01),
        lambda: torch.randperm(1),
        lambda: torch.empty(1).uniform_(),
        lambda: torch.zeros(1).bernoulli_(0.0),
        lambda: torch.zeros(1).normal_(0, 0.01),
        lambda: torch.empty(1).exponential_(1e9),
        lambda: torch.multinomial(torch.ones(1), 1),
        lambda: torch.poisson(torch.zeros(1)),
        lambda: F.dropout(torch.ones(1) * 0.1, 0.5),
    ],
)
def test_a_random_choice_is_told(draw: Callable[[], Tensor]) -> None:
    with pytest.warns(SpecializationWarning, match="a random choice was fixed: a branch on a tensor's value"):
        recorded(lambda y: y * 2 if draw() < 2 else y)


def test_random_numbers_are_drawn_anew_in_the_graph() -> None:
    model = Applies(lambda y: y + torch.rand_like(y) + torch.randn(4)).eval()
    graph = capture(model, X)
    results = []
    for module in (graph, model):
        torch.manual_seed(7)
        results.append(module(X))
    assert torch.equal(*results) and not torch.equal(graph(X), results[0])
    assert graph.capture_report.notes == []


# -- constants -------------------------------------------------------------------------------------

TABLE = torch.arange(4.0)


def test_a_tensor_of_the_module_file_is_a_constant() -> None:
    graph = recorded(lambda y: y + TABLE)
    assert "a tensor of shape (4,)" in str(graph.capture_report.of_kind("constant")[0])
    assert torch.equal(graph._tensor_constant0, TABLE) and "_tensor_constant0" not in graph.state_dict()


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * numpy.float32(2.0) + numpy.int64(3) - numpy.float16(0.5),
        lambda y: y + torch.tensor([1.0, 2.0, 3.0, 4.0]),
        lambda y: y + torch.tensor([numpy.float32(1.0)] * 4),
        lambda y: y / numpy.sqrt(2.0),
        lambda y: y.clamp(max=numpy.float64(0.5)),
        lambda y: y + torch.tensor(numpy.ones(4, dtype=numpy.float32)),
        lambda y: y + torch.as_tensor(numpy.ones(4, dtype=numpy.float32)),
    ],
)
def test_numbers_of_numpy_are_constants(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    assert torch.equal(capture(model, X)(X * 2), model(X * 2))


def test_an_array_that_stays_the_same_is_a_constant() -> None:
    model = Applies(lambda y: y + torch.from_numpy(numpy.ones(4, dtype=numpy.float32))).eval()
    graph = capture(model, X)
    assert torch.equal(graph(X * 2), model(X * 2))


# -- gradients -------------------------------------------------------------------------------------


def gradients(module: nn.Module) -> list[Tensor | None]:
    module.zero_grad()
    module(X).sum().backward()
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def no_grad_block(y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = y.abs().mean()
    with torch.no_grad():
        offset = scale * 2 + y.detach().max()
    return y / scale + offset


@pytest.mark.parametrize(
    "function",
    [
        no_grad_block,
        lambda y: y * y.detach() + y.data,
        lambda y: y + (y.round() - y).detach(),
        lambda y: torch.no_grad()(lambda t: t * 2)(y) + y,
        lambda y: y.clone().requires_grad_() * 2,
    ],
)
def test_gradients_stop_where_the_model_stops_them(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).train()
    graph = copy.deepcopy(capture(model, X))
    for mine, theirs in zip(gradients(graph), gradients(model), strict=True):
        assert (mine is None) == (theirs is None) and (
            mine is None or theirs is None or torch.equal(mine, theirs)
        )


def clamps(y: Tensor) -> Tensor:
    with torch.no_grad():
        y.clamp_(-0.1, 0.1)
    return y * 2


def zeroes(y: Tensor) -> Tensor:
    with torch.no_grad():
        y[:, 0] = 0
    return y * 2


def replaces_data(y: Tensor) -> Tensor:
    y.data = y.data * 2
    return y * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Applies(clamps),
        lambda: Applies(zeroes),
        Clamps,
        pytest.param(
            lambda: Applies(replaces_data),
        ),
    ],
)
def test_a_write_without_gradients_leaves_the_gradients_of_the_tensor(make: Callable[[], nn.Module]) -> None:
    model = make().train()
    graph = copy.deepcopy(capture(model, X))
    mine, theirs = gradients(graph), gradients(model)
    assert all(
        one is not None and two is not None and torch.equal(one, two)
        for one, two in zip(mine, theirs, strict=True)
    )


# -- below the torch API ---------------------------------------------------------------------------


@torch.library.custom_op("sparsebit_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("sparsebit_tests::bump", mutates_args=("x",))
def bump(x: Tensor) -> None:
    x.add_(1)


def bumped(y: Tensor) -> Tensor:
    y = y * 1
    bump(y)
    return y * 2


@pytest.mark.parametrize(
    "function",
    [twice, lambda y: torch.ops.sparsebit_tests.twice(y), bumped, lambda y: torch.ops.aten.add.Tensor(y, y)],
)
def test_operators_of_libraries_are_nodes(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    graph = capture(model, X)
    x = torch.randn(7, 4)
    assert torch.equal(graph(x), model(x)) and not graph.capture_report.of_kind("constant")


def vmapped(y: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.reshape(2, 2) * 2 + row.sum())(y)


def test_what_slips_below_the_torch_api_is_recorded_there() -> None:
    model = Applies(vmapped).eval()
    graph = capture(model, X)
    assert torch.equal(graph(X * 3), model(X * 3)) and not graph.capture_report.of_kind("constant")
    with pytest.raises(CaptureError, match="the number 4 follows from it"):
        graph(torch.cat([X, X]))


def test_modules_under_vmap_are_refused_or_kept_as_one_node() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda row: self.b(self.a(row)))(x)

    model = Rows().eval()
    with pytest.raises(CaptureError, match="does work that the recorder cannot see"):
        capture(model, X)
    kept = nn.Sequential(model)
    assert torch.equal(capture(kept, X, skip=["0"])(X * 2), model(X * 2))


def test_attention_equals_the_fused_kernel_to_rounding_and_the_module_exactly() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return result

    model, x = Attends().eval(), torch.randn(2, 6, 8)
    graph = capture(model, x)
    assert torch.equal(graph(x), model(x))
    with torch.no_grad():  # torch takes one fused kernel here, which rounds in another order
        torch.testing.assert_close(graph(x), model(x), rtol=1e-5, atol=1e-6)
