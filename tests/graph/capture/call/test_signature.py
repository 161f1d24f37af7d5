"""The captured graph is called as the model is: parameters, defaults, nested inputs, output structure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.graph.capture.call.signature import CallSignature, CapturedCodeGen

X, Y = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])


def model_of(forward: Callable[..., Any]) -> nn.Module:
    """A module with this function as its ``forward``."""
    return type("Model", (nn.Module,), {"forward": forward})()


def two(self: Any, a: Tensor, b: Tensor) -> Tensor:
    return a - b


def optional(self: Any, a: Tensor, b: Tensor | None = None, scale: float = 2.0) -> Tensor:
    return a * scale if b is None else (a - b) * scale


def keyword_only(self: Any, a: Tensor, *, b: Tensor, flag: bool = True) -> Tensor:
    return a - b if flag else b - a


def positional_only(self: Any, a: Tensor, b: Tensor, /) -> Tensor:
    return a - b


def variable(self: Any, *tensors: Tensor, scale: float = 1.0, **named: Tensor) -> Tensor:
    return sum(tensors, start=torch.zeros(2)) * scale - sum(named.values(), start=torch.zeros(2))


def nested(self: Any, batch: dict[str, Any], options: dict[str, Any] | None = None) -> Tensor:
    return batch["a"] - batch["rest"][0]


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "positional": (two, (X, Y), {}),
    "by keyword": (two, (X,), {"b": Y}),
    "keywords only": (two, (), {"b": Y, "a": X}),
    "default left out": (optional, (X,), {}),
    "default given": (optional, (X, Y), {"scale": 3.0}),
    "keyword only": (keyword_only, (X,), {"b": Y, "flag": False}),
    "positional only": (positional_only, (X, Y), {}),
    "variable": (variable, (X, Y, X), {"c": X, "d": Y, "scale": 2.0}),
    "nothing variable": (variable, (), {}),
    "nested": (nested, ({"a": X, "rest": (Y, [None, 3])},), {"options": {"deep": [1, "x"]}}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_graph_has_the_models_own_signature(name: str) -> None:
    forward, args, kwargs = CALLS[name]
    model = model_of(forward)
    graph = capture(model, args, kwargs, frontend="record")
    parameters = inspect.signature(forward).parameters
    ours = inspect.signature(graph.forward).parameters
    assert list(ours) == list(parameters)[1:]
    for key, parameter in ours.items():
        assert parameter.default == parameters[key].default
        if parameters[key].kind is not parameter.POSITIONAL_ONLY:
            assert parameter.kind is parameters[key].kind
    assert torch.equal(graph(*args, **kwargs), model(*args, **kwargs))


@pytest.mark.parametrize("name", CALLS)
def test_the_example_call_is_rebuilt_as_it_was_given(name: str) -> None:
    forward, args, kwargs = CALLS[name]
    parameters = inspect.signature(model_of(forward).forward)
    signature, leaves = CallSignature.of_call(parameters, args, kwargs)
    again = signature.rebuild_call(leaves, len(args), frozenset(kwargs))
    assert (repr(again[0]), again[1]) == (repr(args), kwargs)
    assert all(one is two for one, two in zip(signature.flatten_inputs(args, kwargs), leaves, strict=True))


@pytest.mark.parametrize("name", [name for name in CALLS if not CALLS[name][2]])
def test_an_interpreter_runs_the_graph(name: str) -> None:
    forward, args, _ = CALLS[name]
    graph = capture(model_of(forward), args, frontend="record")
    assert torch.equal(fx.Interpreter(graph).run(*args), graph(*args))


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((X,), {}, "missing 1 required positional argument: 'b'"),
        ((X, Y, X), {}, "takes 3 positional arguments but 4 were given"),
        ((X, Y), {"c": X}, "unexpected keyword argument 'c'"),
        ((X, Y), {"b": X}, "multiple values for argument 'b'"),
    ],
)
def test_a_missing_or_extra_argument_is_pythons_own_error(args: Any, kwargs: Any, text: str) -> None:
    graph = capture(model_of(two), (X, Y))
    with pytest.raises(TypeError, match=text):
        graph(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (({"a": X, "rest": (Y,)},), {}, "argument 'batch_rest' has a different structure"),
        (({"a": X},), {}, "argument 'batch' has a different structure"),
        (({"a": 3, "rest": (Y, None)},), {}, "argument 'batch_a' was a tensor when the model was captured"),
        (({"a": X, "rest": (Y, 1)},), {}, "argument 'batch_rest_1' is fixed in the captured graph"),
        (
            ({"a": X, "rest": (Y, None)},),
            {"options": {}},
            "argument 'options' is fixed in the captured graph",
        ),
    ],
)
def test_a_call_that_differs_in_structure_is_refused(args: Any, kwargs: Any, text: str) -> None:
    graph = capture(model_of(nested), ({"a": X, "rest": (Y, None)},))
    with pytest.raises(CaptureError, match=text):
        graph(*args, **kwargs)


def test_another_constant_is_refused_and_the_default_is_not() -> None:
    graph = capture(model_of(optional), (X, Y))
    assert torch.equal(graph(X, Y, 2.0), (X - Y) * 2)
    with pytest.raises(CaptureError, match="argument 'scale' is fixed in the captured graph"):
        graph(X, Y, scale=3.0)


def test_two_placeholders_given_one_tensor_stay_independent() -> None:
    graph = capture(model_of(two), (X, X))
    assert torch.equal(graph(X, Y), X - Y)


def test_an_unused_input_stays_a_placeholder() -> None:
    graph = capture(model_of(lambda self, a, b: a * 2), (X, Y))
    assert [node.name for node in graph.graph.nodes if node.op == "placeholder"] == ["a", "b"]


@pytest.mark.parametrize("default", [None, True, 3, -2.5, "bilinear", (7, 7), 1j, torch.device("cpu")])
def test_defaults_are_kept(default: Any) -> None:
    def forward(self: Any, x: Tensor, option: Any = default) -> Tensor:
        return x * 2

    graph = capture(model_of(forward), X)
    assert inspect.signature(graph.forward).parameters["option"].default == default
    assert torch.equal(graph(X, default), X * 2) and torch.equal(graph(X), X * 2)


@pytest.mark.parametrize("default", [[1, 2], {"a": 1}, torch.float64, float("inf"), torch.relu])
def test_defaults_that_torch_fx_spells_itself_are_kept(default: Any) -> None:
    def forward(self: Any, x: Tensor, option: Any = default) -> Tensor:
        return x * 2

    graph = capture(model_of(forward), X)
    assert inspect.signature(graph.forward).parameters["option"].default is default
    assert torch.equal(graph(X, default), X * 2) and torch.equal(graph(X), X * 2)


@pytest.mark.parametrize("name", ["input", "len", "max", "id", "device", "output", "_args", "size"])
def test_a_parameter_may_be_called_anything(name: str) -> None:
    space: dict[str, Any] = {"F": torch}
    exec(f"def forward(self, {name}, other):\n    return F.relu({name}) - other.size(0)", space)
    graph = capture(model_of(space["forward"]), (X, Y))
    assert list(inspect.signature(graph.forward).parameters) == [name, "other"]
    assert torch.equal(graph(X, torch.ones(5)), X - 5)
    assert torch.equal(graph(**{name: X, "other": torch.ones(5)}), X - 5)


def test_parameters_named_like_each_others_replacements() -> None:
    graph = capture(model_of(lambda self, max, max_1: max - max_1), (X, Y))
    assert torch.equal(graph(X, Y), X - Y)


def test_leaving_out_a_tensor_that_was_given_in_the_example_is_refused() -> None:
    def forward(self: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            return x * 100
        return torch.nn.functional.linear(x, torch.eye(2), bias)

    graph = capture(model_of(forward), (X, Y))
    with pytest.raises(CaptureError, match="argument 'bias' was a tensor when the model was captured"):
        graph(X)  # the model gives x * 100, the graph x


def test_a_number_for_a_tensor_is_refused() -> None:
    with pytest.raises(CaptureError, match="argument 'b' was a tensor when the model was captured"):
        capture(model_of(two), (X, Y))(X, 3.0)


@pytest.mark.xfail(strict=True, reason="a default that is a tensor cannot be named in the generated code")
def test_a_tensor_as_a_default_can_be_replaced_in_a_call() -> None:
    def forward(self: Any, x: Tensor, shift: Tensor = Y) -> Tensor:
        return x - shift

    graph = capture(model_of(forward), X)
    assert torch.equal(graph(X), X - Y)
    assert torch.equal(graph(X, X), X - X)


# -- outputs ---------------------------------------------------------------------------------------

simple = st.recursive(
    st.one_of(st.just("t"), st.none(), st.integers(-3, 3), st.text(max_size=2), st.just(float("inf"))),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "c d"]), inside, max_size=3),
        st.dictionaries(st.integers(0, 3), inside, max_size=2),
    ),
    max_leaves=8,
)


def fill(pattern: Any, tensor: Tensor) -> Any:
    """The pattern with every "t" replaced by the next of ``tensor + 1``, ``tensor + 2``, ..."""
    count = iter(range(1, 99))

    def visit(item: Any) -> Any:
        if item == "t":
            return tensor + next(count)
        if isinstance(item, list | tuple):
            return type(item)(visit(child) for child in item)
        return {key: visit(child) for key, child in item.items()} if isinstance(item, dict) else item

    return visit(pattern)


def bare(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ("tensor", value.tolist())
    if isinstance(value, list | tuple):
        return type(value)(bare(item) for item in value)
    return {key: bare(item) for key, item in value.items()} if isinstance(value, dict) else value


@given(simple)
def test_the_output_structure_is_the_models(pattern: Any) -> None:
    graph = capture(model_of(lambda self, x: fill(pattern, x)), X)
    assert bare(graph(Y)) == bare(fill(pattern, Y))
    flat = next(iter(reversed(graph.graph.nodes))).args[0]
    assert isinstance(flat, tuple) and all(isinstance(item, fx.Node) for item in flat)


def test_simple_outputs_are_written_out_and_objects_are_built() -> None:
    graph = capture(model_of(lambda self, x: {"a": (x, None), "b": [x]}), X)
    assert "return {'a': (x, None, ), 'b': [x]}" in graph.code
    assert "_signature.build" in capture(model_of(lambda self, x: torch.topk(x, 1)), X).code


def test_passes_may_replace_the_output_leaves() -> None:
    graph = capture(model_of(lambda self, x: {"a": x + 1}), X)
    output = next(iter(reversed(graph.graph.nodes)))
    with graph.graph.inserting_before(output):
        output.args = ((graph.graph.call_function(torch.neg, (output.args[0][0],)),),)  # type: ignore[index]
    graph.recompile()
    assert torch.equal(graph(X)["a"], -(X + 1))


def test_the_code_generator_serves_positional_and_keyword_calls() -> None:
    graph = capture(model_of(nested), ({"a": X, "rest": (Y, None)},))
    codegen = graph.graph._codegen
    assert isinstance(codegen, CapturedCodeGen) and graph.call_signature is codegen.signature
    call = {"a": Y, "rest": (X, None)}
    assert [t.tolist() for t in codegen.process_inputs(call)] == [Y.tolist(), X.tolist()]
    assert [t.tolist() for t in codegen.flatten_inputs((), {"batch": call})] == [Y.tolist(), X.tolist()]
    assert codegen.process_outputs((X,)) is X


def test_a_replaced_code_generator_has_no_signature() -> None:
    graph = capture(model_of(two), (X, Y))
    graph.graph.set_codegen(fx.graph.CodeGen())
    assert isinstance(graph, CapturedModule) and graph.call_signature is None


def test_a_size_in_the_output_is_a_size() -> None:
    graph = capture(model_of(lambda self, x: x.shape), X)
    assert isinstance(graph(torch.ones(3)), torch.Size)


def test_a_size_as_a_key_of_the_output_is_fixed() -> None:
    graph = capture(model_of(lambda self, x: {x.size(0): x}), X)
    assert [size.free for size in graph.capture_report.sizes] == [False]
    assert "key of an output" in graph.capture_report.sizes[0].why
