"""Edits of a graph: names stay unique, constants are shared, outputs keep their names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

from sparsebit.export.forms.editor import Editor, array_of, dequantized, only_reader, quantized_source
from sparsebit.export.translate.marker import Markers

FLOAT = onnx_ir.DataType.FLOAT


@pytest.fixture
def editor() -> Editor:
    """Sizes of a constant, and an input through QuantizeLinear, DequantizeLinear, Reshape and Relu."""
    make, kinds = onnx.helper, onnx.TensorProto
    constants = [
        make.make_tensor("scale", kinds.FLOAT, [], [0.5]),
        make.make_tensor("zero", kinds.UINT8, [], [3]),
        make.make_tensor("two", kinds.INT64, [1], [2]),
    ]
    nodes = [
        make.make_node("Concat", ["two", "two"], ["sizes"], name="sizes", axis=0),
        make.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"], name="q"),
        make.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["back"], name="d"),
        make.make_node("Reshape", ["back", "sizes"], ["square"], name="reshape"),
        make.make_node("Relu", ["square"], ["y"], name="relu"),
    ]
    ends = [
        make.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in (("x", [4]), ("y", [2, 2]))
    ]
    graph = make.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 20)], ir_version=8)
    return Editor(onnx_ir.serde.deserialize_model(model), Markers())


def node(editor: Editor, name: str) -> Any:
    return next(found for found in editor.graph if found.name == name)


def test_equal_constants_are_one_and_names_are_fresh(editor: Editor) -> None:
    first = editor.constant(np.array(0.5), FLOAT, "scale")
    assert first.name == "scale" and first is editor.constant(np.array(0.5), FLOAT, "other")
    assert editor.constant(np.array(0.25), FLOAT, "scale").name == "scale_1"
    assert [editor.fresh("relu"), editor.fresh("relu"), editor.fresh("new")] == ["relu_1", "relu_2", "new"]


def test_what_is_computed_from_constants_is_known(editor: Editor) -> None:
    assert editor.evaluated(node(editor, "reshape").inputs[1]).tolist() == [2, 2]
    assert editor.evaluated(node(editor, "relu").inputs[0]) is None


def test_where_a_value_comes_from(editor: Editor) -> None:
    read = node(editor, "relu").inputs[0]
    assert dequantized(read) is None and quantized_source(read) is node(editor, "d")
    assert only_reader(node(editor, "q").outputs[0]) is node(editor, "d")
    assert array_of(node(editor, "q").inputs[1]) == 0.5 and array_of(read) is None


def test_an_output_keeps_its_name_and_dead_nodes_go(editor: Editor) -> None:
    relu = node(editor, "relu")
    editor.swap(
        relu, editor.node("Abs", [editor.graph.inputs[0]], before=relu, name="abs", like=relu.outputs[0])
    )
    editor.sweep()
    assert [found.op_type for found in editor.graph] == ["Abs"] and not editor.graph.initializers
    assert [value.name for value in editor.graph.outputs] == ["y"]


def test_a_rewrite_is_offered_each_node_of_its_types_and_counted(editor: Editor) -> None:
    seen: list[str] = []

    def look(inside: Editor, found: Any) -> bool:
        seen.append(found.name)
        return bool(found.op_type == "Relu")

    assert editor.apply(look, "Relu", "Reshape") == 1 and seen == ["reshape", "relu"]


def test_nodes_are_put_before_and_behind_values(editor: Editor) -> None:
    editor.put_before(node(editor, "relu"), 0, "Sum", name="held")
    editor.put_behind(node(editor, "d").outputs[0], "Neg", name="turned")
    assert [found.op_type for found in editor.graph][3:] == ["Neg", "Reshape", "Sum", "Relu"]
    assert node(editor, "reshape").inputs[0].producer().name == "turned"
