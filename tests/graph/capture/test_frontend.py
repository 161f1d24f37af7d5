"""``capture``: what it takes, which front-end it chooses, what it says when something is wrong."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import pack_sequence

import sparsebit
from sparsebit.errors import CaptureError, SparsebitError, SpecializationWarning
from sparsebit.graph.capture import CapturedModule, capture
from tests.graph.capture.nets import Dropping

X = torch.randn(3, 4)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


class Pair(nn.Module):
    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return a * 2 if b is None else a - b


class Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Constant(nn.Module):
    """Takes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self) -> Tensor:
        return self.weight * torch.ones(3, device=self.weight.device)


# -- example inputs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (X, None, X * 2),
        ((X,), None, X * 2),
        ([X], None, X * 2),
        ((X, X + 1), None, X - (X + 1)),
        ([X, X + 1], {}, X - (X + 1)),
        ((X,), {"b": X + 1}, X - (X + 1)),
        ((), {"a": X}, X * 2),
        ((), {"b": X, "a": X + 1}, X + 1 - X),
    ],
)
def test_inputs_come_as_a_tensor_a_list_a_tuple_or_by_name(args: Any, kwargs: Any, expected: Tensor) -> None:
    graph = capture(Pair(), args, kwargs)
    call = args if isinstance(args, tuple | list) else (args,)
    assert torch.equal(graph(*call, **(kwargs or {})), expected)
    assert graph.capture_report.frontend == "record"


def test_a_lone_dict_gives_keywords() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return x * scale

    graph = capture(Scaled(), {"scale": torch.tensor(2.0), "x": X})
    assert torch.equal(graph(X + 1, scale=torch.tensor(3.0)), (X + 1) * 3)
    with pytest.raises(CaptureError, match="example inputs are given as keywords twice"):
        capture(Scaled(), {"x": X}, {"scale": X})


def test_a_dict_that_is_one_argument_goes_in_a_tuple() -> None:
    class Batch(nn.Module):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return batch["x"] * 2

    assert torch.equal(capture(Batch(), ({"x": X},))({"x": X + 1}), (X + 1) * 2)
    with pytest.raises(CaptureError, match="a dict that is itself one argument goes in a tuple"):
        capture(Batch(), {"x": X})


def test_a_lone_packed_sequence_is_one_argument() -> None:
    class Packed(nn.Module):
        def forward(self, batch: Any) -> Tensor:
            return batch.data * 2

    capture(Packed(), pack_sequence([X]))


@pytest.mark.parametrize(
    ("args", "kwargs", "reason", "got"),
    [
        ((X, X, X), {}, "too many positional arguments", "3 positional and keywords none"),
        ((), {"b": X}, "missing a required argument: 'a'", r"0 positional and keywords \['b'\]"),
        ((X,), {"c": X}, "got an unexpected keyword argument 'c'", r"1 positional and keywords \['c'\]"),
        ((X,), {"a": X}, "multiple values for argument 'a'", r"1 positional and keywords \['a'\]"),
    ],
)
def test_inputs_that_do_not_fit_are_told_with_the_signature(
    args: Any, kwargs: Any, reason: str, got: str
) -> None:
    with pytest.raises(CaptureError, match=f"the example inputs do not fit Pair.forward: {reason}") as error:
        capture(Pair(), args, kwargs)
    assert str(error.value.expected).startswith("forward(a: ") and "pass positional inputs as a tuple" in str(
        error.value.hint
    )
    with pytest.raises(AssertionError, match=got):
        raise AssertionError(error.value.got)


def test_recording_without_inputs_says_what_is_missing() -> None:
    with pytest.raises(
        CaptureError, match=r"the example inputs do not fit Sequential.forward: missing a required argument"
    ):
        capture(net(), frontend="record")


def test_the_inputs_are_not_modified() -> None:
    class Writes(nn.Module):
        def forward(self, a: Tensor, b: list[Tensor]) -> Tensor:
            b.append(a)
            return a.add_(b[0].mul_(2))

    a, b = X.clone().requires_grad_(), [X.clone()]
    version = a._version
    capture(Writes(), (a, b))
    assert (
        torch.equal(a, X)
        and torch.equal(b[0], X)
        and len(b) == 1
        and a._version == version
        and a.grad is None
    )


PRUNED = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: torch.eye(4).to_sparse(), "a tensor of layout torch.sparse_coo"),
        (lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(1, 4)]), "a nested tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inputs_that_are_not_dense_are_refused(make: Callable[[], Tensor], got: str) -> None:
    x, model = make(), nn.Linear(4, 2).eval()
    calls: list[Callable[[], object]] = [
        lambda: sparsebit.quantize(model, [x], progress=False),
        lambda: sparsebit.prune(model, PRUNED, example_inputs=(x,)),
        lambda: sparsebit.export_onnx(model, "model.onnx", (x,)),
    ]
    if x.is_nested:
        calls.append(lambda: capture(model, (x,)))
    for call in calls:
        with pytest.raises(SparsebitError, match=rf"dense tensors(.|\n)*{got}(.|\n)*to_dense\(\), or pad it"):
            call()


# -- what can be captured --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thing", "kind"),
    [(torch.relu, "a builtin_function_or_method"), ("model", "a str"), (nn.Linear, "a type")],
)
def test_only_modules_and_programs_can_be_captured(thing: Any, kind: str) -> None:
    with pytest.raises(
        CaptureError, match=r"only a torch.nn.Module or a torch.export.ExportedProgram"
    ) as error:
        capture(thing, X)
    assert error.value.got == kind and error.value.hint is not None


def test_an_unknown_front_end_is_told_the_known_ones() -> None:
    with pytest.raises(CaptureError, match="'jit' is not a front-end") as error:
        capture(net(), X, frontend="jit")  # type: ignore[arg-type]
    assert error.value.expected == "one of auto, record, symbolic, exported"
    assert isinstance(error.value, SparsebitError)


@pytest.mark.parametrize("frontend", ["record", "symbolic"])
def test_an_exported_program_has_one_front_end(frontend: Any) -> None:
    program = torch.export.export(net(), (X,))
    with pytest.raises(CaptureError, match=f"an ExportedProgram cannot be captured by '{frontend}'") as error:
        capture(program, frontend=frontend)
    assert "leave frontend out" in str(error.value.hint)
    assert capture(program).capture_report.frontend == "exported"


def test_an_unknown_data_policy_is_an_error() -> None:
    with pytest.raises(CaptureError, match="on_data"):
        capture(net(), X, on_data="refuses")  # type: ignore[arg-type]


def test_without_inputs_a_model_is_traced_symbolically() -> None:
    graph = capture(net())
    assert graph.capture_report.frontend == "symbolic" and torch.equal(graph(X), net_like(graph)(X))


def net_like(graph: nn.Module) -> nn.Module:
    model = net()
    model.load_state_dict(graph.state_dict())
    return model


@pytest.mark.parametrize("frontend", ["auto", "record", "symbolic", "exported"])
def test_a_model_without_inputs_is_captured(frontend: Any) -> None:
    model = Constant()
    graph = capture(model, frontend=frontend)
    assert torch.equal(graph(), model()) and list(graph.state_dict()) == ["weight"]


@pytest.mark.parametrize("frontend", ["record", "symbolic", "exported"])
def test_every_front_end_gives_the_same_normal_form(frontend: Any) -> None:
    model = net()
    graph = capture(model, () if frontend == "symbolic" else X, frontend=frontend)
    assert isinstance(graph, CapturedModule) and graph.capture_report.frontend == frontend
    assert [(n.op, str(n.target)) for n in graph.graph.nodes][1:] == [
        ("call_module", "0"),
        ("call_module", "1"),
        ("call_module", "2"),
        ("output", "output"),
    ]
    assert torch.equal(graph(X), model(X))
    assert all(
        set(node.meta) >= {"module_path", "source"} for node in graph.graph.nodes if node.op != "output"
    )


def only_not(reason: str, *frontends: str) -> Any:
    """All front-ends, with a known bug in some."""
    mark = pytest.mark.xfail(strict=True, reason=reason)
    names = ("record", "symbolic", "exported")
    return pytest.mark.parametrize(
        "frontend", [pytest.param(name, marks=mark if name in frontends else ()) for name in names]
    )


@only_not("the exported front-end takes no notice of skip", "exported")
def test_a_skipped_module_stays_one_node(frontend: Any) -> None:
    model = nn.Sequential(net(), nn.Sequential(nn.Linear(2, 2), nn.Tanh())).eval()
    graph = capture(model, () if frontend == "symbolic" else X, frontend=frontend, skip=["1"])
    assert [str(n.target) for n in graph.graph.nodes if n.op == "call_module"] == ["0.0", "0.1", "0.2", "1"]


@pytest.mark.parametrize("frontend", ["record", "symbolic", "exported"])
def test_a_pattern_that_matches_nothing_is_an_error(frontend: Any) -> None:
    with pytest.raises(CaptureError, match="skip pattern 'head' matches no module"):
        capture(net(), () if frontend == "symbolic" else X, frontend=frontend, skip=["head"])


@pytest.mark.parametrize("frontend", ["record", "symbolic", "exported"])
def test_uninitialised_parameters_are_named(frontend: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3))
    with pytest.raises(CaptureError, match=r"parameter '1.weight' has no shape yet") as error:
        capture(model, () if frontend == "symbolic" else X, frontend=frontend)
    assert "run the model once" in str(error.value.hint)


# -- control flow that depends on data -------------------------------------------------------------


class Clipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1e6:
            return x * 0
        return x * 2


def test_a_branch_on_data_is_refused_with_its_line_and_the_ways_out() -> None:
    with pytest.raises(
        CaptureError, match="the model's control flow depends on its input data: a branch on a tensor"
    ) as error:
        capture(Clipped(), X)
    assert "in Clipped.forward: if x.max() > 1e6:" in str(error.value.where)
    assert (
        "torch.where" in str(error.value.hint)
        and "skip=" in str(error.value.hint)
        and "on_data='specialise'" in str(error.value.hint)
    )


def test_a_branch_on_data_can_be_kept_as_the_example_took_it() -> None:
    with pytest.warns(
        SpecializationWarning, match="the captured graph fixed values that depend on the example inputs"
    ) as told:
        graph = capture(Clipped(), X, on_data="specialise")
    assert told[0].filename == __file__, "the warning points at the caller"
    assert torch.equal(graph(X * 1e9), X * 1e9 * 2) and "data" in str(graph.capture_report)


def test_a_branch_on_data_can_be_skipped() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Clipped()).eval()
    graph = capture(model, X, skip=["1"])
    assert torch.equal(graph(X * 1e9), model(X * 1e9)) and not graph.capture_report.notes


def test_many_notes_are_cut_short_in_the_warning() -> None:
    namespace: dict[str, Any] = {}
    lines = [f"    x = x * x.sum().item() if x.sum() > {index} else x" for index in range(12)]
    exec("\n".join(["def forward(self, x):", *lines, "    return x"]), namespace)
    model = type("Many", (nn.Module,), {"forward": namespace["forward"]})()
    with pytest.warns(SpecializationWarning, match=r"and \d+ more in .capture_report"):
        capture(model, X, on_data="specialise")


# -- models of other makers ------------------------------------------------------------------------


def test_a_graph_can_be_captured_again() -> None:
    model = net()
    once = capture(model, X)
    twice = capture(once, X)
    assert torch.equal(twice(X), model(X)) and list(twice.state_dict()) == list(model.state_dict())
    assert str(twice.code) == str(once.code)


def test_a_graph_with_mode_constants_can_be_captured_again() -> None:
    model = Dropping().eval()
    twice = capture(capture(model, X), X)
    assert torch.equal(twice(X), model(X)) and list(twice.state_dict()) == list(model.state_dict())
    torch.manual_seed(0)
    got = twice.train()(X)
    torch.manual_seed(0)
    assert torch.equal(got, model.train()(X))


@pytest.mark.parametrize("inputs", [(X,), ()])
def test_a_symbolically_traced_module_can_be_captured(inputs: Any) -> None:
    model = net()
    graph = capture(fx.symbolic_trace(model), inputs)
    assert torch.equal(graph(X), model(X)) and list(graph.state_dict()) == list(model.state_dict())


# -- what the graph is good for --------------------------------------------------------------------


class Branching(nn.Module):
    """Has a check of a size in its graph, nested inputs and outputs, and a write."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Tensor], scale: float = 2.0) -> dict[str, Tensor]:
        y = self.linear(batch["x"])
        y[:, 0] = 0
        if y.size(0) > 1:
            y = y * scale
        return {"y": y, "n": torch.arange(y.size(0))}


def test_a_graph_compiles() -> None:
    model = Branching().eval()
    graph = capture(model, ({"x": X},))
    compiled = torch.compile(graph, backend="eager")
    for x in (X, torch.randn(5, 4)):
        got, expected = compiled({"x": x}), model({"x": x})
        assert torch.equal(got["y"], expected["y"]) and torch.equal(got["n"], expected["n"])
    torch._dynamo.reset()


def test_a_graph_exports() -> None:
    model = Branching().eval()
    graph = capture(model, ({"x": X},))
    program = torch.export.export(graph, ({"x": X},))
    assert torch.equal(program.module()({"x": X})["y"], model({"x": X})["y"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_of_any_precision_are_captured(dtype: torch.dtype) -> None:
    model, x = net().to(dtype), X.to(dtype)
    graph = capture(model, x)
    assert torch.equal(graph(x), model(x)) and graph(x).dtype is dtype


def test_the_public_names_are_the_same_functions() -> None:
    assert sparsebit.capture is capture and inspect.ismodule(sparsebit.graph.capture)


def test_the_graph_is_independent_of_the_model_after_a_deep_copy() -> None:
    model = net()
    graph = copy.deepcopy(capture(model, X))
    expected = graph(X)
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(graph(X), expected)
