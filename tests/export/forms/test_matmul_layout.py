"""Weights of matrix products as [inputs, outputs], in blocks where a kernel wants them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparsebit.export.forms.editor import Editor, array_of, attribute
from sparsebit.export.forms.matmul_layout import as_matmul, separate_weight_only, transpose_weight
from sparsebit.export.translate.marker import Markers


def editor(*nodes: Any, opset: int = 21, **weights: Any) -> Editor:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return Editor(onnx_ir.serde.deserialize_model(model), Markers())


CODES = np.arange(128, dtype=np.int8).reshape(4, 32)
GRID = {"s": np.linspace(1, 2, 4, dtype=np.float32), "z": np.zeros(4, np.int8)}
WEIGHT = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], name="w/DequantizeLinear", axis=0)


def only(made: Editor, op_type: str) -> Any:
    (node,) = made.of_type(op_type)
    return node


def test_a_weight_that_is_only_read_transposed_is_stored_transposed() -> None:
    nodes = (
        WEIGHT,
        helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0], name="t"),
        helper.make_node("MatMul", ["x", "t"], ["y"], name="m"),
    )
    made = editor(*nodes, w=CODES, **GRID)
    assert made.apply(transpose_weight, "DequantizeLinear") == 1
    weight = only(made, "DequantizeLinear")
    assert not made.of_type("Transpose") and attribute(weight, "axis") == 1
    assert np.array_equal(array_of(weight.inputs[0]), CODES.T)


def test_a_gemm_becomes_a_product_and_a_sum() -> None:
    gemm = helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=1, name="g")
    made = editor(WEIGHT, gemm, w=CODES, b=np.ones(4, np.float32), **GRID)
    assert as_matmul(made, only(made, "Gemm")).op_type == "MatMul"
    assert only(made, "Add") and not made.of_type("Gemm")
    scaled = helper.make_node("Gemm", ["x", "d"], ["y"], transB=1, alpha=2.0, name="g")
    made = editor(WEIGHT, scaled, w=CODES, **GRID)
    assert as_matmul(made, only(made, "Gemm")) is None and made.of_type("Gemm")


@pytest.mark.parametrize(("opset", "block"), [(21, 32), (20, None)])
def test_a_weight_alone_has_its_scales_in_blocks_where_the_opset_has_them(
    opset: int, block: int | None
) -> None:
    gemm = helper.make_node("Gemm", ["x", "d"], ["y"], transB=1, name="g")
    made = editor(WEIGHT, gemm, opset=opset, w=CODES, **GRID)
    assert made.apply(separate_weight_only, "Gemm") == 1
    weight = only(made, "MatMul").inputs[1].producer()
    assert attribute(weight, "block_size") == block
    if block:
        assert np.array_equal(array_of(weight.inputs[1]), GRID["s"][None])
