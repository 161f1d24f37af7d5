"""Names that come from data reach no generated code, whichever way a graph was made."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import sparsebit
from sparsebit.errors import CaptureError, GraphError
from sparsebit.graph.codegen import find_unsafe_name, is_plain_name, make_safe

HOSTILE = [
    'a"), getattr(EXECUTED, "append")(1), getattr(getattr(self, "heads"), "a',
    'x")\ngetattr(EXECUTED, "append")(2)\n#',
    'quote"',
    "it's",
    "\\",
    "class",  # a keyword
    "None",
    "\ufb01",  # a ligature, which Python reads as "fi" where an identifier stands
    "{0}",
    "# COUNTER: 1",  # a mark that torch.fx looks for in its own code
    "a\tb",
    " ",
    "0",
]


class Heads(nn.Module):
    """Layers and parameters whose names are class labels."""

    def __init__(self) -> None:
        super().__init__()
        self.stems = nn.ModuleDict({label: nn.Conv2d(3, 16, 1) for label in HOSTILE})
        self.heads = nn.ModuleDict({label: nn.Linear(16, 4) for label in ["a", *HOSTILE]})
        for label in HOSTILE:
            self.heads[label].register_parameter(label, nn.Parameter(torch.rand(4)))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = torch.relu(sum(stem(x) for stem in self.stems.values())).mean((2, 3))
        return {name: head(y) * getattr(head, name, 1) for name, head in self.heads.items()}


@pytest.fixture(name="executed", autouse=True)
def _executed() -> Iterator[list[int]]:
    executed: list[int] = []
    builtins.EXECUTED = executed  # type: ignore[attr-defined]
    yield executed
    del builtins.EXECUTED  # type: ignore[attr-defined]
    assert not executed


def _model() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Heads().eval(), torch.randn(2, 3, 4, 4)


def _same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[k], expected[k]) for k in expected)


@pytest.mark.parametrize("frontend", ["record", "symbolic"])
def test_any_name_is_captured_and_none_is_executed(frontend: str) -> None:
    model, x = _model()
    gm = sparsebit.capture(model, (x,), frontend=frontend)  # type: ignore[arg-type]
    assert _same(gm(x), model(x)) and _same(copy.deepcopy(gm)(x), model(x))
    assert list(gm.state_dict()) == list(model.state_dict())
    targets = {str(node.target) for node in gm.graph.nodes if node.op == "call_module"}
    assert targets == {
        name for name, part in model.named_modules() if isinstance(part, nn.Conv2d | nn.Linear)
    }


def test_torch_export_is_not_given_such_names() -> None:
    model, x = _model()
    with pytest.raises(CaptureError, match=r"torch\.export cannot take a module or tensor named"):
        sparsebit.capture(model, (x,), frontend="exported")


def test_an_exported_program_with_such_a_name_is_refused_before_its_code_is_made() -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(2, 2)).eval(), (torch.zeros(1, 2),))
    program.state_dict[HOSTILE[1]] = torch.zeros(1)
    with pytest.raises(CaptureError, match="use the default front-end"):
        sparsebit.capture(program)


def test_a_quantized_model_is_run_exported_saved_and_loaded(tmp_path: Path) -> None:
    model, x = _model()
    quantized = sparsebit.QuantModel(model, "int8_onnxruntime", example_inputs=(x,))
    quantized.calibrate([x], progress=False)
    quantized.set_quant(True, True)
    expected = quantized(x)
    assert quantized.export_onnx(x, str(tmp_path / "a.onnx")).report.ok
    quantized.save(str(tmp_path / "saved"))
    assert _same(sparsebit.QuantModel.load(str(tmp_path / "saved"), model)(x), expected)


def test_a_model_is_pruned() -> None:
    model, x = _model()
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    sparse = sparsebit.SparseModel(model, config, example_inputs=(x,))
    sparse.calc_params()
    assert list(sparse.shrink()(x)) == ["a", *HOSTILE]


def test_a_plain_graph_module_is_made_safe() -> None:
    root = nn.Module()
    root.add_module(HOSTILE[1], nn.Identity())
    graph = fx.Graph()
    graph.output(graph.call_module(HOSTILE[1], (graph.placeholder("x"),)))
    gm = fx.GraphModule(root, make_safe(graph))
    assert gm(3) == 3


def test_another_code_generator_is_not_given_such_names() -> None:
    graph = fx.Graph()
    graph.output(graph.get_attr(HOSTILE[0]))
    graph.set_codegen(fx.graph._PyTreeCodeGen(fx.graph._PyTreeInfo([], None, None)))  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="cannot be written into code by _PyTreeCodeGen"):
        make_safe(graph)


def test_the_name_of_an_argument_cannot_be_code() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(dict, (), {"a=EXECUTED.append(3), b": 1}))
    with pytest.raises(GraphError, match="is not a Python name"):
        fx.GraphModule(nn.Module(), make_safe(graph))


@pytest.mark.parametrize(
    ("name", "plain"), [("conv1", True), ("0", True), ("a-b c", True), ("if", False), ("\u00e9", False)]
)
def test_plain_names(name: str, plain: bool) -> None:
    assert is_plain_name(name) is plain
    model = nn.ModuleDict({name: nn.ReLU()})
    assert find_unsafe_name(model) == (None if plain else name)
