"""Bring quantized weights of matrix products into the layout that runtimes read: [inputs, outputs], no transpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.container import BLOCK_OPSET
from sparsebit.export.forms.editor import (
    Editor,
    array_of,
    attribute,
    dequantized,
    is_float8,
    quantized_source,
    readers,
)

_FUSED = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid", "Softplus")  # into Gemm
LARGEST_BLOCK, SMALLEST_BLOCK = 128, 16  # MatMulNBits takes powers of two in this range


def transpose_weight(editor: Editor, node: Any) -> bool:
    """Store a weight transposed if it is only read through a transpose."""
    users = readers(node.outputs[0])
    if array_of(node.inputs[0]) is None or not users or node.outputs[0].is_graph_output():
        return False
    if any(user.op_type != "Transpose" or list(attribute(user, "perm", ())) != [1, 0] for user in users):
        return False
    turned = _turned(editor, node)
    for user in users:
        editor.replace(user.outputs[0], turned)
    return True


def separate_weight_only(editor: Editor, node: Any) -> bool:
    """Write a product of a float input and an integer weight as blocks along the inputs and a plain MatMul.

    This is the only form that ONNX Runtime turns into ``MatMulNBits``. A scale per output channel is a scale per block,
    many times the same.
    """
    weight = dequantized(node.inputs[1])
    if weight is None or array_of(weight.inputs[0]) is None:
        return False
    if quantized_source(node.inputs[0]) is not None or is_float8(node.inputs[0]):
        return False
    changed: bool = node.op_type == "Gemm"
    if changed:
        node = as_matmul(editor, node)
        if node is None:
            return False
        weight = dequantized(node.inputs[1])
    if editor.opset >= BLOCK_OPSET and len(readers(weight.outputs[0])) == 1:
        changed |= _in_blocks(editor, weight)
    return changed


def as_matmul(editor: Editor, node: Any, *, apart: bool = False) -> Any:
    """Gemm as MatMul and Add; None if it scales or transposes its input.

    An addition may be fused to Gemm again, with the activation after it; a subtraction is not (``apart``).
    """
    if (
        attribute(node, "alpha", 1.0) != 1.0
        or attribute(node, "beta", 1.0) != 1.0
        or attribute(node, "transA", 0)
    ):
        return None
    weight, result = dequantized(node.inputs[1]), node.outputs[0]
    turned = _turned(editor, weight) if attribute(node, "transB", 0) else node.inputs[1]
    product = value = editor.node(
        "MatMul", [node.inputs[0], turned], before=node, name=f"{node.name}/MatMul", like=result
    )
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        apart = apart or any(reader.op_type in _FUSED for reader in readers(result))
        numbers = array_of(bias) if apart else None
        if numbers is not None:
            bias = editor.constant(-numbers, bias.dtype, f"{bias.name}.negated")
        op_type = "Add" if numbers is None else "Sub"
        value = editor.node(op_type, [product, bias], before=node, name=f"{node.name}/Add", like=result)
    editor.swap(node, value)
    return product.producer()


def _turned(editor: Editor, node: Any) -> Any:
    """The same weight, transposed, as a new DequantizeLinear."""
    codes, scale, zero_point = (array_of(value) for value in node.inputs)
    attributes: dict[str, int] = {}
    if scale.ndim >= 1:
        attributes["axis"] = 1 - attribute(node, "axis", 1) % 2
    if block := attribute(node, "block_size", 0):
        attributes["block_size"] = block
    if scale.ndim == 2:
        scale, zero_point = scale.T, zero_point.T
    turned = (np.ascontiguousarray(codes.T), scale, zero_point)
    value = _restored(editor, node, "transposed", turned, (".transposed", "", ""), attributes)
    value.shape = editor.ir.Shape(codes.T.shape)
    return value


def _in_blocks(editor: Editor, node: Any) -> bool:
    """Give a [K, N] weight with one scale per column (or a single one) the same scales in blocks along K."""
    codes, scale, zero_point = (array_of(value) for value in node.inputs)
    by_row = scale.ndim == 1 and attribute(node, "axis", 1) % 2 != 1
    if attribute(node, "block_size", 0) or codes.ndim != 2 or by_row:
        return False
    length, block = codes.shape[0], LARGEST_BLOCK
    while block > SMALLEST_BLOCK and length % block:
        block //= 2
    if length % block:
        return False
    shape = (length // block, codes.shape[1])
    repeated = (np.broadcast_to(values.reshape(1, -1), shape) for values in (scale, zero_point))
    attributes = {"axis": 0, "block_size": block}
    value = _restored(editor, node, "blocks", (None, *repeated), ("", ".blocks", ".blocks"), attributes)
    value.shape = node.outputs[0].shape
    editor.replace(node.outputs[0], value)
    return True


def _restored(
    editor: Editor, node: Any, word: str, arrays: Any, endings: Any, attributes: dict[str, int]
) -> Any:
    """A DequantizeLinear like another one with other inputs (None: the same) and attributes."""
    inputs = [
        old if array is None else editor.constant(array, old.dtype, f"{old.name}{ending}")
        for old, array, ending in zip(node.inputs, arrays, endings, strict=True)
    ]
    return editor.node(
        "DequantizeLinear", inputs, before=node, name=f"{node.name}_{word}",
        output=f"{node.outputs[0].name}.{word}", dtype=node.outputs[0].dtype, metadata=node.metadata_props,
        **attributes,
    )  # fmt: skip
