from __future__ import annotations

import copy
import operator
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError, SparsebitError
from sparsebit.graph.capture import capture
from sparsebit.graph.run import RunState, SavedState, evaluating, flatten_call, requiring_grad, run_graph


def trace(forward: object) -> GraphModule:
    return fx.symbolic_trace(forward)


def run(gm: GraphModule, *args: Any, **kwargs: Any) -> Any:
    """As the model is called, with the options of ``run_graph`` among the keywords."""
    options = {name: kwargs.pop(name) for name in ("watch", "replace", "until", "state") if name in kwargs}
    return run_graph(gm, args, kwargs, **options)


def names(gm: GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes if node.op != "output"]


class Net(nn.Module):
    """A residual net with shared, functional and tuple-valued parts."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.relu(self.bn(self.conv(x)))
        y = self.relu(y * self.scale + y)
        left, right = y.chunk(2, 1)
        pooled = torch.cat([left, right.sigmoid()], 1).mean((2, 3)).reshape(x.shape[0], -1)
        return self.fc(pooled), {"pooled": pooled}


@pytest.fixture
def model() -> Net:
    return Net().eval()


@pytest.fixture
def gm(model: Net) -> GraphModule:
    return capture(model, (torch.randn(2, 3, 5, 5),))


def same(left: Any, right: Any) -> bool:
    leaves = [torch.utils._pytree.tree_flatten(value) for value in (left, right)]
    (ours, our_tree), (theirs, their_tree) = leaves
    return our_tree == their_tree and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_run_gives_what_a_call_gives(gm: GraphModule, model: Net) -> None:
    x = torch.randn(3, 3, 7, 7)
    assert same(run(gm, x), model(x))
    assert same(run(gm, x=x), model(x))


def test_train_mode_gives_the_same_numbers_gradients_and_statistics(model: Net) -> None:
    model.train()
    gm = capture(model, (torch.randn(2, 3, 5, 5),))
    x = torch.randn(3, 3, 7, 7)
    model(x)[0].sum().backward()
    expected, statistics = model.fc.weight.grad, model.bn.running_mean
    assert expected is not None and statistics is not None
    expected, statistics = expected.clone(), statistics.clone()
    model.zero_grad()
    model.bn.reset_running_stats()
    run(gm, x)[0].sum().backward()
    assert torch.equal(model.fc.weight.grad, expected)
    assert torch.equal(model.bn.running_mean, statistics)


def test_a_callback_sees_every_value_in_order(gm: GraphModule) -> None:
    seen: list[str] = []
    run(gm, torch.randn(2, 3, 5, 5), watch=lambda node, value: seen.append(node.name))
    assert seen == [node.name for node in gm.graph.nodes]


def test_an_input_can_be_replaced(gm: GraphModule, model: Net) -> None:
    x, other = torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)
    assert same(run(gm, x, replace={"x": lambda value: value * 0 + other}), model(other))


def test_a_function_can_be_replaced(gm: GraphModule, model: Net) -> None:
    x, other = torch.randn(2, 3, 5, 5), nn.Conv2d(3, 4, 3, padding=1)
    ours = run(gm, x, replace={"conv": other})
    model.conv = other
    assert same(ours, model(x))


def test_a_parameter_can_be_replaced(gm: GraphModule, model: Net) -> None:
    x, other = torch.randn(2, 3, 5, 5), torch.randn(4, 1, 1)
    ours = run(gm, x, replace={"scale": lambda: other})
    stopped = run(gm, x, replace={"scale": lambda: other}, until="conv")
    model.scale.data = other
    assert same(ours, model(x))
    assert same(run(gm, state=stopped, replace={"scale": lambda: other}), model(x))


def test_stopping_and_resuming_at_every_node_gives_the_same(gm: GraphModule, model: Net) -> None:
    x = torch.randn(3, 3, 7, 7)
    expected = model(x)
    for name in names(gm):
        result = run(gm, x, until=name)
        assert isinstance(result, RunState)
        assert same(run(gm, state=result), expected)
        assert same(run(gm, state=result), expected)  # a state can be used again


def test_a_run_can_be_stopped_several_times(gm: GraphModule, model: Net) -> None:
    x = torch.randn(3, 3, 7, 7)
    state = run(gm, x, until="conv")
    for name in ("relu", "chunk", "fc"):
        state = run(gm, state=state, until=name)
    assert same(run(gm, state=state), model(x))


def test_until_the_output_is_a_whole_run(gm: GraphModule, model: Net) -> None:
    x = torch.randn(2, 3, 5, 5)
    assert same(run(gm, x, until="output"), model(x))


def test_a_state_holds_only_what_is_still_needed(gm: GraphModule) -> None:
    state = run(gm, torch.randn(3, 3, 7, 7), until="cat")
    assert state is not None
    assert set(state.values) <= {"cat", "size", "x"}
    assert "cat" in state.values
    assert "scale" not in run(gm, torch.randn(3, 3, 7, 7), until="conv").values


def test_a_resumed_run_does_not_overwrite_the_state() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 2
        view = y[0]
        z = y.abs()
        view.add_(1)  # in place, after the stop, on memory that two kept values share
        return y + z + view

    gm, x = trace(forward), torch.ones(2, 2)
    with torch.no_grad():
        state = run(gm, x, until="abs_1")
        results = [run(gm, state=state) for _ in range(3)]
    assert all(torch.equal(result, forward(x)) for result in results)


def test_a_resumed_run_writes_into_the_state_of_the_model() -> None:
    class Shrinking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.fc.weight.mul_(0.5).clamp_(-0.1, 0.1)
            return self.fc(x)

    model = Shrinking()
    x = torch.randn(2, 3)
    expected = copy.deepcopy(model)(x)
    gm = capture(model, (torch.randn(2, 3),))
    with torch.no_grad():
        assert torch.equal(run(gm, state=run(gm, x, until="mul_")), expected)


def test_a_state_with_gradients_that_was_overwritten_is_refused() -> None:
    gm, x = trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))), torch.randn(3, 2)
    state = run(gm, x, until="_0")
    run(gm, state=state).sum().backward()
    with pytest.raises(GraphError, match="resumed before"):
        run(gm, state=state)


def test_values_are_freed_after_their_last_use() -> None:
    gm = trace(nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)]))
    alive: list[int] = []
    made: list[weakref.ref[Tensor]] = []

    def watch(node: Node, value: object) -> None:
        alive.append(sum(reference() is not None for reference in made))
        if isinstance(value, Tensor):
            made.append(weakref.ref(value))

    with torch.no_grad():
        run_graph(gm, (torch.randn(4, 8),), watch=watch)
    # while a node is being shown, its own input is the only older value alive
    assert alive == [0, 1, 1, 1, 1, 1, 1, 1]


def test_a_value_that_is_needed_later_is_kept_until_then() -> None:
    def forward(x: Tensor) -> Tensor:
        early = x.sigmoid()
        y = early.relu().relu().relu()
        return (y + early).relu()

    gm = trace(forward)
    early: list[weakref.ref[Tensor]] = []
    seen: dict[str, bool] = {}

    def watch(node: Node, value: object) -> None:
        if node.name == "sigmoid":
            assert isinstance(value, Tensor)
            early.append(weakref.ref(value))
        elif early:
            seen[node.name] = early[0]() is not None

    run_graph(gm, (torch.randn(3),), watch=watch)
    assert seen == {
        "relu": True,
        "relu_1": True,
        "relu_2": True,
        "add": True,
        "relu_3": False,
        "output": False,
    }


def test_inputs_are_freed_too() -> None:
    gm = trace(lambda x: x.relu().relu().relu())
    reference: list[weakref.ref[Tensor]] = []
    seen: list[bool] = []

    def make() -> Tensor:
        x = torch.randn(3)
        reference.append(weakref.ref(x))
        return x

    run_graph(gm, (make(),), watch=lambda node, value: seen.append(reference[0]() is not None))
    assert seen[:4] == [True, True, False, False]


def test_memory_of_a_stopped_run_is_that_of_its_state() -> None:
    gm = trace(lambda x: x.relu().sigmoid().relu())
    made: list[weakref.ref[Tensor]] = []

    def watch(node: Node, value: object) -> None:
        if isinstance(value, Tensor):
            made.append(weakref.ref(value))

    with torch.no_grad():
        state = run_graph(gm, (torch.randn(3),), until="sigmoid", watch=watch)
    assert state is not None
    assert list(state.values) == ["sigmoid"]
    assert [reference() is not None for reference in made] == [False, False, True]


@dataclass
class Answer:
    total: Tensor
    parts: list[Tensor]


class Nested(nn.Module):
    def forward(
        self, batch: dict[str, Any], *rest: Tensor, scale: float = 2.0, mask: Tensor | None = None
    ) -> Answer:
        total = batch["x"] * scale + sum(rest)
        return Answer(total if mask is None else total * mask, [batch["pair"][0], batch["pair"][1] + 1])


def test_nested_inputs_and_outputs_keep_their_structure() -> None:
    model = Nested()
    batch = {"x": torch.randn(3), "pair": (torch.randn(2), torch.randn(2))}
    mask = torch.tensor([1.0, 0.0, 1.0])
    gm = capture(model, (batch, torch.ones(3)), {"mask": mask})
    ours, theirs = (
        run(gm, batch, torch.ones(3), mask=mask),
        model(batch, torch.ones(3), mask=mask),
    )
    assert type(ours) is Answer
    assert torch.equal(ours.total, theirs.total)
    assert all(torch.equal(a, b) for a, b in zip(ours.parts, theirs.parts, strict=True))
    assert len(flatten_call(gm, (batch, torch.ones(3)), {"mask": mask})) == 5


def test_a_plain_graph_module_takes_defaults_and_keywords() -> None:
    def forward(x: Tensor, scale: float = 3.0, *, shift: float = 0.0) -> Tensor:
        return x * scale + shift

    gm, x = trace(forward), torch.randn(3)
    assert torch.equal(run(gm, x), x * 3)
    assert torch.equal(run(gm, x=x, scale=2.0), x * 2)
    assert torch.equal(run(gm, x, 2.0, shift=1.0), x * 2 + 1)
    with pytest.raises(GraphError, match="the call does not fit the graph: missing a required argument: 'x'"):
        run(gm, scale=2.0)
    with pytest.raises(GraphError, match="the call does not fit the graph: "):
        run(gm, x, 1.0, 0.0, 5)
    with pytest.raises(GraphError, match="the call does not fit the graph: "):
        run(gm, x, sclae=1.0)


def test_a_plain_graph_module_takes_variable_arguments() -> None:
    class Variable(nn.Module):
        def forward(self, x: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
            return x + args[0] * kwargs["scale"]

    gm = trace(Variable())
    x = torch.randn(3)
    assert torch.equal(run(gm, x, x, scale=x), x + x * x)


def test_a_plain_graph_module_with_flattened_inputs() -> None:
    def forward(pair: dict[str, Tensor], y: Tensor) -> dict[str, Tensor]:
        return {"sum": pair["a"] + pair["b"] * y}

    gm = fx.symbolic_trace(forward, concrete_args={"pair": {"a": fx.PH, "b": fx.PH}})
    pair, y = {"a": torch.ones(2), "b": torch.ones(2)}, torch.tensor([1.0, 2.0])
    assert run(gm, pair, y)["sum"].tolist() == [2, 3]
    assert run(gm, pair, y=y)["sum"].tolist() == [2, 3]


def test_arguments_named_like_those_of_run() -> None:
    def forward(x: Tensor, state: Tensor, until: Tensor) -> Tensor:
        return x + state * until

    x = torch.ones(2)
    assert run_graph(trace(forward), (x,), {"state": x, "until": x}).tolist() == [2, 2]


def test_autocast_stays_inside_the_run() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.head(self.fc(x).relu())
            return y.float() * 2

    model = Mixed().eval()
    gm, x = capture(model, (torch.randn(2, 4),)), torch.randn(3, 4)
    expected = model(x)
    assert torch.equal(run(gm, x), expected)
    for name in names(gm):
        state = run(gm, x, until=name)
        assert not torch.is_autocast_enabled("cpu")
        assert torch.equal(run(gm, state=state), expected)
        assert not torch.is_autocast_enabled("cpu")
    gm.get_submodule("head").weight = nn.Parameter(torch.zeros(4, 5))  # fails in the middle of the block
    with pytest.raises(GraphError):
        run(gm, x)
    assert not torch.is_autocast_enabled("cpu")


def test_a_switched_gradient_mode_stays_inside_the_run() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(operator.mul, (x, 2))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    z = graph.call_function(operator.mul, (y, 3))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output(graph.call_function(operator.add, (y, z)))
    gm, x_value = GraphModule(nn.Module(), graph), torch.ones(2, requires_grad=True)
    state = run(gm, x_value, until="_set_grad_enabled")
    assert torch.is_grad_enabled()
    assert isinstance(state, RunState)
    (out := run(gm, state=state)).sum().backward()
    assert out.tolist() == [8, 8]
    assert x_value.grad is not None
    assert x_value.grad.tolist() == [2, 2]


def test_errors_name_the_node_its_inputs_and_the_line_of_the_model() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(OrderedDict(fc=nn.Linear(4, 4)))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.relu(self.body(x)).matmul(y)

    gm = capture(Broken())  # traced: whatever the sizes
    with pytest.raises(GraphError) as error:
        run(gm, torch.randn(2, 4), torch.randn(5, 3))
    text = str(error.value)
    assert "matmul failed: RuntimeError:" in text
    assert "node 'matmul'" in text
    assert "test_run.py:" in text
    assert "matmul(float32[2, 4], float32[5, 3])" in text
    assert isinstance(error.value.__cause__, RuntimeError)
    with pytest.raises(GraphError) as error:
        run(gm, torch.randn(2, 5), torch.randn(5, 3))
    assert "linear failed" in str(error.value)
    assert "in body" in str(error.value)


@pytest.mark.parametrize("how", ["replace", "until"])
def test_an_unknown_node_gets_a_suggestion(gm: GraphModule, how: str) -> None:
    given: Any = {"replace": {"covn": abs}, "until": "covn"}[how]
    with pytest.raises(GraphError, match=r"no node 'covn'[\s\S]*did you mean 'conv'\?"):
        run(gm, torch.randn(2, 3, 5, 5), **{how: given})


def test_resuming_takes_no_arguments(gm: GraphModule) -> None:
    x = torch.randn(2, 3, 5, 5)
    state = run(gm, x, until="conv")
    with pytest.raises(GraphError, match="is resumed without arguments"):
        run(gm, x, state=state)


def test_a_graph_without_output() -> None:
    gm = trace(lambda x: x.relu())
    gm.graph.erase_node(next(iter(reversed(gm.graph.nodes))))
    with pytest.raises(GraphError, match="no output node"):
        run(gm, torch.zeros(1))


def test_evaluating_puts_every_mode_back() -> None:
    gm = capture(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train(), torch.randn(2, 4))
    gm.get_submodule("1").eval()
    with evaluating(gm):
        assert not any(module.training for module in gm.modules())
    assert gm.training and gm.get_submodule("2").training and not gm.get_submodule("1").training


class Merging(nn.Module):
    """Switches more than the mode, as layers with adapters do."""

    merged = False

    def train(self, mode: bool = True) -> Merging:
        self.merged = not mode
        return super().train(mode)


def test_a_class_that_switches_more_than_its_mode_is_switched_back_by_itself() -> None:
    model = nn.Sequential(Merging(), nn.BatchNorm1d(2)).train()
    model[1].eval()
    with pytest.raises(ValueError, match="inside"), evaluating(model):
        assert model[0].merged
        raise ValueError("inside")
    assert not model[0].merged and model[0].training and not model[1].training


def test_buffers_and_parameters_are_put_back_where_that_is_asked_for() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("seen", torch.zeros(2))
    weight = net.weight.detach().clone()
    with SavedState(net, parameters=True).undone(), torch.no_grad():
        net.weight.zero_()
        net.get_buffer("seen").fill_(1)
    assert torch.equal(net.weight, weight) and not net.get_buffer("seen").any()
    with SavedState(net, parameters=False).undone(), torch.no_grad():
        net.weight.zero_()
    assert not net.weight.any()


def test_what_is_written_in_inference_mode_is_restored_too() -> None:
    """Its tensors do not count writes."""
    with torch.inference_mode():
        net = nn.BatchNorm2d(2)
        with SavedState(net, parameters=True).undone():
            net(torch.randn(4, 2, 3, 3))
            assert net.get_buffer("running_mean").any()
        assert not net.get_buffer("running_mean").any()


@pytest.mark.parametrize("on", [True, False])
def test_gradients_are_required_inside_the_block_only(on: bool) -> None:
    tensors = [torch.zeros(1, requires_grad=True), torch.zeros(1)]
    with pytest.raises(ValueError, match="inside"), requiring_grad(tensors, on):
        assert [tensor.requires_grad for tensor in tensors] == [on, on]
        raise ValueError("inside")
    assert [tensor.requires_grad for tensor in tensors] == [True, False]


@pytest.mark.parametrize(
    "error", [SparsebitError("no scale", hint="calibrate"), torch.OutOfMemoryError("full")]
)
def test_errors_that_explain_themselves_are_passed_on(error: Exception) -> None:
    def fail(x: Tensor) -> Tensor:
        raise error

    gm = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    gm.get_submodule("0").forward = fail  # type: ignore[method-assign]
    with pytest.raises(type(error)) as caught:
        run_graph(gm, (torch.zeros(2),))
    assert caught.value is error
