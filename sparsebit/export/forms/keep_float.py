"""Prevent rewrites by ONNX Runtime that change results. Each was seen in version 1.31 and has a test.

A one-input ``Sum`` is an identity that no fusion looks through, so it is inserted to block fusions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import (
    MOVES,
    Editor,
    array_of,
    attribute,
    dequantized,
    is_float8,
    only_reader,
    quantized_source,
    readers,
)

# Operators that ONNX Runtime runs on integers directly, so that the layer after them has a quantized input.
PASSED = MOVES | {
    "Slice",
    "Gather",
    "Flatten",
    "MaxPool",
    "Expand",
    "Split",
    "DepthToSpace",
    "SpaceToDepth",
    "Tile",
}
LEFT_OUT = PASSED | {"Cast", "Dropout", "Concat"}  # dropped if they change nothing
NEUTRAL = ("Add", "Sub", "Mul", "Div")  # likewise, with a 0 or a 1


def keep_float_weight(editor: Editor, node: Any) -> bool:
    """A weight that was not quantized stays in float.

    Between quantized tensors, ONNX Runtime would quantize it itself, with one scale for the complete weight.
    """
    if quantized_source(node.inputs[0], behind=PASSED) is None or not _is_quantized_later(node.outputs[0]):
        return False
    if dequantized(node.inputs[1], behind=MOVES) is not None:
        return False
    editor.put_behind(node.outputs[0], "Sum", name=f"{node.name}/Sum")
    return True


def _is_quantized_later(value: Any) -> bool:
    """Whether a value is quantized next, or after operators that ONNX Runtime fuses, drops or moves."""
    waiting, seen = [value], set[Any]()
    while waiting:
        for reader in readers(waiting.pop()):
            if reader in seen:  # branches join again: without this, the number of paths would explode
                continue
            seen.add(reader)
            if reader.op_type in ("QuantizeLinear", "Relu", "Clip"):
                return True
            neutral = [array for entry in reader.inputs[1:] if (array := array_of(entry)) is not None]
            if reader.op_type in LEFT_OUT or (
                reader.op_type in NEUTRAL and any(a.size == 1 for a in neutral)
            ):
                waiting.extend(reader.outputs)
    return False


def keep_softmax_float(editor: Editor, node: Any) -> bool:
    """A softmax between quantized tensors stays in float.

    The integer kernel takes five times as long, and 2 % of its values differ.
    """
    ends = any(reader.op_type == "QuantizeLinear" for reader in readers(node.outputs[0]))
    if not ends or dequantized(node.inputs[0]) is None:
        return False
    editor.put_behind(node.outputs[0], "Sum", name=f"{node.name}/Sum")
    return True


def keep_unsupported_grid_float(editor: Editor, node: Any) -> bool:
    """A product of quantized inputs on grids that no integer kernel reads stays in float.

    ONNX Runtime would choose a kernel that then fails: one that requires a single scale for its input and
    at most one scale per output channel for its weight.
    """
    inputs = [dequantized(value, behind=MOVES) for value in node.inputs[:2]]
    if None in inputs:
        return False
    hidden = False
    for index, source in enumerate(inputs):
        several = np.size(array_of(source.inputs[1])) > 1
        narrow = source.inputs[0].dtype is not None and "4" in source.inputs[0].dtype.name
        blocked = bool(attribute(source, "block_size", 0)) and not narrow
        if blocked if array_of(source.inputs[0]) is not None else several:
            hidden = _hide_input(editor, node, index)
    return hidden


def keep_vector_matmul_float(editor: Editor, node: Any) -> bool:
    """A product with a vector stays as it is.

    ONNX Runtime would choose an integer kernel that fails on vectors, or reads a matrix transposed and the
    transpose before it twice.
    """
    if 1 not in [_constant_rank(value) for value in node.inputs]:
        return False
    hidden = False
    for index, value in enumerate(list(node.inputs)):
        maker = value.producer()
        if maker is not None and maker.op_type in ("Transpose", "DequantizeLinear"):
            hidden = _hide_input(editor, node, index)
    return hidden


def _constant_rank(value: Any) -> int | None:
    weight = dequantized(value)
    array = array_of(value) if weight is None else array_of(weight.inputs[0])
    return None if array is None else array.ndim


def keep_float8_product(editor: Editor, node: Any) -> bool:
    """A product of 8-bit floats stays in float: otherwise a kernel that rounds its inputs to integers would be used."""
    if not is_float8(node.inputs[0]) or dequantized(node.inputs[1]) is None:
        return False
    return _hide_input(editor, node, 1)


def keep_float8_relu(editor: Editor, node: Any) -> bool:
    """A Relu before 8-bit floats becomes Max: ONNX Runtime drops it before any zero point 0."""
    found = [node.outputs[0]]
    while (reader := only_reader(found[-1])) is not None and reader.op_type in ("MaxPool", *MOVES):
        found.append(reader.outputs[0])
    ends = [reader.outputs[0].dtype for reader in readers(found[-1]) if reader.op_type == "QuantizeLinear"]
    if not any(kind is not None and "FLOAT8" in kind.name for kind in ends):
        return False
    zero = editor.constant(
        np.array(0.0), node.inputs[0].dtype or editor.ir.DataType.FLOAT, f"{node.name}.zero"
    )
    inputs = [node.inputs[0], zero]
    editor.swap(node, editor.node("Max", inputs, before=node, name=f"{node.name}/Max", like=node.outputs[0]))
    return True


def keep_branch_float(editor: Editor, node: Any) -> bool:
    """Tensors that a branch or loop reads from outside stay in float: otherwise ONNX Runtime ends the process.

    Its optimizer searches for readers of a DequantizeLinear only among a node's own inputs.
    """
    hidden = False
    inside = [part for found in node.attributes.values() for part in _graphs(found)]
    for value in {value for graph in inside for part in graph.all_nodes() for value in part.inputs if value}:
        if value.graph is editor.graph and dequantized(value, behind=MOVES) is not None:
            users = [(user, place) for user, place in value.uses() if user.graph is not editor.graph]
            held = editor.node("Sum", [value], after=value.producer(), name=f"{value.name}/Sum", like=value)
            for user, place in users:
                user.replace_input_with(place, held)
            hidden = True
    return hidden


def _graphs(found: Any) -> list[Any]:
    kind = found.type.name
    return [found.value] if kind == "GRAPH" else list(found.value) if kind == "GRAPHS" else []


def _hide_input(editor: Editor, node: Any, index: int) -> bool:
    editor.put_before(node, index, "Sum", name=f"{node.name}/Sum_{index}")
    return True
