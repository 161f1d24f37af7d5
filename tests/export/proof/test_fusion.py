"""Which operators were planned on integers, and the reason for each that runs in float."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparsebit.export.proof.fusion import float_ops, integer_ops
from sparsebit.targets import TARGETS

KERNELS = TARGETS["onnxruntime"].kernels


def model(*nodes: Any, **weights: Any) -> Any:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return onnx_ir.serde.deserialize_model(made)


ONE = {"s": np.float32(1), "z": np.uint8(0), "wz": np.int8(0), "w": np.ones((2, 2, 1, 1), np.int8)}
INPUTS = (
    helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"], name="x/DequantizeLinear"),
    helper.make_node("DequantizeLinear", ["w", "s", "wz"], ["b"], name="w/DequantizeLinear"),
)
CONV = helper.make_node("Conv", ["a", "b"], ["c"], name="conv")


def ending(*names: str) -> list[Any]:
    """Operators behind a convolution, one after the other, the last of which gives y."""
    made, value = [], "c"
    for index, name in enumerate(names):
        result = "y" if index == len(names) - 1 else f"v{index}"
        inputs = [value, "s", "z"] if name.endswith("Linear") else [value]
        made.append(helper.make_node(name, inputs, [result], name=f"n{index}"))
        value = result
    return made


@pytest.mark.parametrize(
    ("behind", "why"),
    [
        (("Sigmoid",), "its result is not quantized"),
        (("Relu", "QuantizeLinear"), "a Relu is between it and its QuantizeLinear"),
        (("QuantizeLinear",), "ONNX Runtime did not fuse it"),
    ],
)
def test_an_operator_that_stayed_in_float_has_its_reason(behind: tuple[str, ...], why: str) -> None:
    exported = model(*INPUTS, CONV, *ending(*behind), **ONE)
    (found,) = [op for op in integer_ops(exported, exported, KERNELS) if op.op == "Conv"]
    assert not found.on_integers and found.runs_as == "Conv" and why in found.why


def test_a_fused_operator_is_found_by_the_name_it_kept_and_a_vanished_one_is_folded_away() -> None:
    exported = model(*INPUTS, CONV, *ending("QuantizeLinear"), **ONE)
    fused = helper.make_node(
        "QLinearConv", ["x", "s", "z", "w", "s", "wz", "s", "z"], ["y"], name="conv_quant"
    )
    (found,) = integer_ops(exported, model(fused, **ONE), KERNELS)
    assert found.on_integers and found.runs_as == "QLinearConv" and found.why == ""
    other = helper.make_node("Identity", ["x"], ["elsewhere"], name="other")
    (gone,) = integer_ops(exported, model(other, **ONE), KERNELS)
    assert gone.runs_as == "folded away" and gone.on_integers


def test_operators_that_compute_on_floats_are_counted_and_moves_are_not() -> None:
    between = ("HardSwish", "Reshape", "HardSwish", "Sigmoid", "QuantizeLinear")
    optimized = model(*INPUTS, CONV, *ending(*between), **ONE)
    assert float_ops(optimized) == {"HardSwish": 2, "Conv": 1, "Sigmoid": 1}
    fused = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "wz", "s", "z"], ["y"])
    assert float_ops(model(fused, **ONE)) == {}


def test_sizes_are_not_floats_and_results_of_integer_kernels_may_be() -> None:
    split = (
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Shape", ["r"], ["size"]),
        helper.make_node("Div", ["size", "two"], ["half"]),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("Slice", ["q", "start", "half"], ["left"]),
        helper.make_node("QLinearConv", ["left", "s", "z", "w", "s", "wz", "s", "z"], ["y"]),
    )
    sizes = {"two": np.array([2], np.int64), "start": np.array([0], np.int64)}
    assert float_ops(model(INPUTS[0], *split, **ONE, **sizes)) == {"Relu": 1}
    product = helper.make_node("MatMulIntegerToFloat", ["x", "w", "s", "s"], ["c"])
    assert float_ops(model(product, *ending("Gelu"), **ONE)) == {"Gelu": 1}
    rows = helper.make_node("Gather", ["table", "x"], ["c"])
    table = {"table": np.ones((4, 2), np.float32)}
    assert float_ops(model(rows, *ending("LSTM"), **ONE, **table)) == {"LSTM": 1}
