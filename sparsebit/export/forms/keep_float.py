"""Keep ONNX Runtime from rewriting what it rewrites into other numbers. Seen in 1.31, each with a test.

A one-input ``Sum`` is an identity that no fusion looks through, so it is put in the way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import Editor, array_of, attribute, only_reader, readers
from sparsebit.export.forms.lower import MOVES, behind_moves, is_dequantized, is_float8, quantized_source

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def keep_float_weights(editor: Editor) -> int:
    """Weights that were not quantized stay in float; returns how many.

    Between codes on both sides, ONNX Runtime would quantize them itself, with one scale for all.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type in PRODUCTS[:3]]:
        ends = any(
            reader.op_type in ("QuantizeLinear", "Relu", "Clip") for reader in readers(node.outputs[0])
        )
        if ends and quantized_source(node.inputs[0]) is not None and not _has_codes(node.inputs[1]):
            _hide_result(editor, node)
            changed += 1
    return changed


def keep_softmax_float(editor: Editor) -> int:
    """A softmax between codes stays in float; returns how many.

    The integer kernel takes five times as long, and gives other codes in two of a hundred places.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "Softmax"]:
        ends = any(reader.op_type == "QuantizeLinear" for reader in readers(node.outputs[0]))
        if ends and is_dequantized(node.inputs[0]) is not None:
            _hide_result(editor, node)
            changed += 1
    return changed


def keep_unsupported_grids_float(editor: Editor) -> int:
    """Products of quantized inputs on grids that no integer kernel reads stay in float; returns how many.

    ONNX Runtime would let a kernel take them that then refuses: one that wants a single scale for its input and
    at most one scale per output channel for its weight.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type in PRODUCTS]:
        inputs = [behind_moves(value) for value in node.inputs[:2]]
        if any(value is None for value in inputs):
            continue
        for index, dequantize in enumerate(inputs):
            weight = array_of(dequantize.inputs[0]) is not None
            several = np.size(array_of(dequantize.inputs[1])) > 1
            blocked = bool(attribute(dequantize, "block_size", 0))
            narrow = dequantize.inputs[0].dtype is not None and "4" in dequantize.inputs[0].dtype.name
            if (blocked and not narrow) if weight else several:
                _hide_input(editor, node, index)
                changed += 1
    return changed


def keep_vector_matmul_float(editor: Editor) -> int:
    """A product with a vector stays as it is; returns how many.

    ONNX Runtime has an integer kernel take it that refuses vectors, or reads a matrix the other way round and the
    transpose before it twice.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "MatMul"]:
        ranks = [_constant_rank(value) for value in node.inputs]
        if 1 not in ranks:
            continue
        for index, value in enumerate(list(node.inputs)):
            maker = value.producer()
            if maker is not None and maker.op_type in ("Transpose", "DequantizeLinear"):
                _hide_input(editor, node, index)
                changed += 1
    return changed


def keep_float8_products(editor: Editor) -> int:
    """Products of 8-bit floats stay in float, and so does a Relu in front of them; returns how many.

    ONNX Runtime would let a kernel that rounds its inputs to integers take an integer weight, and drops a Relu in
    front of any zero point 0, also where codes have a sign.
    """
    changed = 0
    for node in list(editor.graph):
        if (
            node.op_type in PRODUCTS
            and is_float8(node.inputs[0])
            and is_dequantized(node.inputs[1]) is not None
        ):
            _hide_input(editor, node, 1)
            changed += 1
        elif node.op_type == "Relu" and _meets_float8(node):
            kind = node.inputs[0].dtype or editor.ir.DataType.FLOAT
            zero = editor.constant(np.array(0.0), kind, f"{node.name}.zero")
            value = editor.node(
                "Max", [node.inputs[0], zero], before=node, name=f"{node.name}/Max",
                output=f"{node.outputs[0].name}_max", like=node.outputs[0], dtype=node.outputs[0].dtype,
            )  # fmt: skip
            editor.replace(node.outputs[0], value)
            editor.graph.remove(node, safe=True)
            changed += 1
    return changed


def _meets_float8(node: Any) -> bool:
    found = [node.outputs[0]]
    while (reader := only_reader(found[-1])) is not None and reader.op_type in ("MaxPool", *MOVES):
        found.append(reader.outputs[0])
    ends = [reader for reader in readers(found[-1]) if reader.op_type == "QuantizeLinear"]
    return any(end.outputs[0].dtype is not None and "FLOAT8" in end.outputs[0].dtype.name for end in ends)


def _has_codes(value: Any) -> bool:
    return behind_moves(value) is not None


def _constant_rank(value: Any) -> int | None:
    weight = is_dequantized(value)
    array = array_of(value) if weight is None else array_of(weight.inputs[0])
    return None if array is None else array.ndim


def _hide_input(editor: Editor, node: Any, index: int) -> None:
    value = node.inputs[index]
    hidden = editor.node(
        "Sum", [value], before=node, name=f"{node.name}/Sum_{index}", output=f"{value.name}_as_is", like=value,
        dtype=value.dtype,
    )  # fmt: skip
    node.replace_input_with(index, hidden)


def _hide_result(editor: Editor, node: Any) -> None:
    result = node.outputs[0]
    editor.put_behind(result, "Sum", name=f"{node.name}/Sum", output=f"{result.name}_as_is")
