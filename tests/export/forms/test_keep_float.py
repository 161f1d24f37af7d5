"""What ONNX Runtime would rewrite into other numbers is written so that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from torch import Tensor, nn

from sparsebit.export import CheckReport, check, export_graph
from sparsebit.export.forms import keep_float, target_form
from sparsebit.export.forms.editor import Editor, only_reader
from sparsebit.export.translate.marker import Markers
from sparsebit.runtime import open_session
from tests.export.nets import config, quantized

FLOAT8 = {"dtype": "fp8_e4m3", "scheme": "per-tensor-symmetric"}


class Computed(nn.Module):
    """A weight that is computed, and so not quantized, between codes; the gain is read twice, so it stays computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.gain, self.weight = (
            nn.Parameter(torch.rand(8, 1, 1, 1) ** 4),
            nn.Parameter(torch.randn(8, 8, 3, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.conv2d(torch.relu(self.first(x)), self.gain * self.weight)
        return self.last(torch.relu(x)) * self.gain.amax()  # type: ignore[no-any-return]


class Cut(Computed):
    """Some of the channels go on, which ONNX Runtime cuts out of the integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.conv2d(self.first(x)[:, ::2], self.gain * self.weight)
        return self.last(torch.relu(x)) * self.gain.amax()  # type: ignore[no-any-return]


class Recast(Computed):
    """A cast to the same type, which ONNX Runtime drops, before the result is quantized."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.conv2d(torch.relu(self.first(x)), self.gain * self.weight)
        return self.last(x.float().type_as(x)) * self.gain.amax()  # type: ignore[no-any-return]


class Vectors(nn.Module):
    """A weighted mean, as detectors decode boxes: a transpose in front of a product with a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 12, 1)
        self.register_buffer("steps", torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).reshape(x.size(0), 4, 3, -1).softmax(2)
        return y.permute(0, 1, 3, 2) @ self.steps


class Weighted(nn.Module):
    """A product with a vector that is a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) @ self.vector


class Probabilities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).softmax(1))  # type: ignore[no-any-return]


IMAGE, ROWS = (2, 3, 8, 8), (4, 8)
CASES: dict[str, tuple[type[nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "keep_float_weight": (Computed, IMAGE, config()),
    "float_weight": (Cut, IMAGE, config()),
    "_weight": (Recast, IMAGE, config()),
    "keep_vector_matmul_float": (Vectors, IMAGE, config()),
    "keep_softmax_float": (Probabilities, IMAGE, config(BACKEND="virtual")),
    "keep_float8": (Computed, IMAGE, config(w=FLOAT8, a=FLOAT8, BACKEND="virtual")),
}


def checked(name: str, path: Path) -> CheckReport:
    net, shape, setting = CASES[name]
    torch.manual_seed(0)
    x = torch.randn(shape)
    qmodel = quantized(net(), x, setting)
    done = export_graph(qmodel.model, (x,), path=path)
    return check(qmodel.model, done, [((x,), {})])


@pytest.mark.parametrize("name", CASES)
def test_the_runtime_gives_the_right_numbers(name: str, tmp_path: Path) -> None:
    report = checked(name, tmp_path / "net.onnx")
    assert report.ok and not any(t.blame for t in report.tensors), report


@pytest.mark.parametrize("name", CASES)
def test_without_it_the_runtime_gives_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the runtime has been repaired and the rewrite can go."""
    steps = tuple(step for step in target_form.ON_CPUS if name not in step[0].__name__)
    monkeypatch.setattr(target_form, "ON_CPUS", steps)
    report = checked(name, tmp_path / "net.onnx")
    assert not report.ok or any(t.blame == "kernel" for t in report.tensors)


def test_a_vector_that_is_a_weight(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS)
    qmodel = quantized(Weighted(), x, config(BACKEND="virtual"))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert check(qmodel.model, done, [((x,), {})]).ok


def test_what_a_branch_reads_is_float() -> None:
    """ONNX Runtime ends the process over a branch that reads a DequantizeLinear from outside of it."""
    make, kinds = onnx.helper, onnx.TensorProto
    constants = [make.make_tensor("s", kinds.FLOAT, [], [0.5]), make.make_tensor("z", kinds.UINT8, [], [3])]
    value = make.make_tensor_value_info("out", kinds.FLOAT, [4])
    branches = {
        f"{word}_branch": make.make_graph([make.make_node(op, ["back"], ["out"])], word, [], [value])
        for word, op in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [
        make.make_node("QuantizeLinear", ["x", "s", "z"], ["codes"], name="q"),
        make.make_node("DequantizeLinear", ["codes", "s", "z"], ["back"], name="d"),
        make.make_node("If", ["which"], ["y"], name="if", **branches),
    ]
    inputs = [
        make.make_tensor_value_info("x", kinds.FLOAT, [4]),
        make.make_tensor_value_info("which", kinds.BOOL, []),
    ]
    graph = make.make_graph(
        nodes, "g", inputs, [make.make_tensor_value_info("y", kinds.FLOAT, [4])], constants
    )
    opset = [make.make_opsetid("", 20)]
    model = onnx_ir.serde.deserialize_model(make.make_model(graph, opset_imports=opset, ir_version=8))
    editor = Editor(model, Markers())
    assert editor.apply(target_form.keep_branch_float, "If") == 1
    assert [node.op_type for node in editor.graph] == ["QuantizeLinear", "DequantizeLinear", "Sum", "If"]
    assert only_reader(editor.graph[1].outputs[0]).op_type == "Sum"
    session = open_session(onnx_ir.serde.serialize_model(model))
    x = np.array([-2, -1, 1, 2], np.float32)
    assert session.run({"x": x, "which": np.array(False)})["y"].tolist() == [1.5, 1.0, -1.0, -2.0]


def test_paths_that_part_and_meet_are_walked_once() -> None:
    """Forty times two ways are 2**40 paths; every node is looked at once, so this ends."""
    first = value = onnx_ir.Value(name="x")
    for _ in range(40):
        left, right = (onnx_ir.Node("", "Reshape", [value]).outputs[0] for _ in range(2))
        value = onnx_ir.Node("", "Concat", [left, right]).outputs[0]
    assert not keep_float._is_quantized_later(first)
    onnx_ir.Node("", "QuantizeLinear", [value])
    assert keep_float._is_quantized_later(first)
