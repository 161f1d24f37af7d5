"""Bring quantized weights of matrix products into the layout runtimes read: [inputs, outputs], no transpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.container import BLOCK_OPSET
from sparsebit.export.forms.editor import Editor, array_of, attribute, readers
from sparsebit.export.forms.lower import is_dequantized, is_float8, quantized_source

_FUSED = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Clip", "HardSigmoid", "Softplus")  # into Gemm
LARGEST_BLOCK, SMALLEST_BLOCK = 128, 16  # MatMulNBits takes powers of two in this range


def transpose_weights(editor: Editor) -> int:
    """Store a weight that is only read through a transpose the other way round; returns how many."""
    changed = 0
    for node in list(editor.graph):
        if node.op_type != "DequantizeLinear" or array_of(node.inputs[0]) is None:
            continue
        users = readers(node.outputs[0])
        if not users or node.outputs[0].is_graph_output():
            continue
        if all(user.op_type == "Transpose" and list(attribute(user, "perm", ())) == [1, 0] for user in users):
            turned = _turned(editor, node)
            for user in users:
                editor.replace(user.outputs[0], turned)
            changed += 1
    editor.sweep()
    return changed


def separate_weight_only(editor: Editor, opset: int) -> int:
    """Write products of a float input and an integer weight as blocks along the inputs and a plain MatMul.

    That is the one form ONNX Runtime turns into ``MatMulNBits``. A scale per output channel is a scale per block, many
    times the same. Returns how many products were rewritten.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type in ("Gemm", "MatMul")]:
        weight = is_dequantized(node.inputs[1])
        if (
            weight is None
            or array_of(weight.inputs[0]) is None
            or quantized_source(node.inputs[0]) is not None
            or is_float8(node.inputs[0])
        ):
            continue
        if node.op_type == "Gemm":
            node = as_matmul(editor, node)
            if node is None:
                continue
            changed += 1
            weight = is_dequantized(node.inputs[1])
        if opset >= BLOCK_OPSET and len(readers(weight.outputs[0])) == 1:
            changed += _in_blocks(editor, weight)
    editor.sweep()
    return changed


def as_matmul(editor: Editor, node: Any, *, apart: bool = False) -> Any:
    """Gemm as MatMul and Add; None where it scales or transposes its input.

    A sum may become Gemm again, and take the activation behind it in; a difference does not (``apart``).
    """
    if (
        attribute(node, "alpha", 1.0) != 1.0
        or attribute(node, "beta", 1.0) != 1.0
        or attribute(node, "transA", 0)
    ):
        return None
    weight = is_dequantized(node.inputs[1])
    turned = _turned(editor, weight) if attribute(node, "transB", 0) else node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    product = editor.node(
        "MatMul", [node.inputs[0], turned], before=node, name=f"{node.name}/MatMul",
        output=f"{node.outputs[0].name}_product", like=node.outputs[0], dtype=node.outputs[0].dtype,
    )  # fmt: skip
    result = product
    if bias is not None:
        apart = apart or any(reader.op_type in _FUSED for reader in readers(node.outputs[0]))
        numbers = array_of(bias) if apart else None
        if numbers is not None:
            bias = editor.constant(-numbers, bias.dtype, f"{bias.name}.negated")
        result = editor.node(
            "Add" if numbers is None else "Sub", [product, bias], before=node, name=f"{node.name}/Add",
            output=f"{node.outputs[0].name}_sum", like=node.outputs[0], dtype=node.outputs[0].dtype,
        )  # fmt: skip
    editor.replace(node.outputs[0], result)
    editor.graph.remove(node, safe=True)
    return product.producer()


def _turned(editor: Editor, node: Any) -> Any:
    """The same weight, transposed, as a DequantizeLinear of its own."""
    codes, scale, zero_point = (array_of(value) for value in node.inputs)
    name = node.inputs[0].name
    attributes: dict[str, int] = {}
    if scale.ndim >= 1:
        attributes["axis"] = 1 - attribute(node, "axis", 1) % 2
        if block := attribute(node, "block_size", 0):
            attributes["block_size"] = block
    if scale.ndim == 2:
        scale, zero_point = scale.T, zero_point.T
    inputs = [
        editor.constant(np.ascontiguousarray(codes.T), node.inputs[0].dtype, f"{name}.transposed"),
        editor.constant(scale, node.inputs[1].dtype, node.inputs[1].name),
        editor.constant(zero_point, node.inputs[2].dtype, node.inputs[2].name),
    ]
    value = editor.node(
        "DequantizeLinear", inputs, before=node, name=f"{node.name}_transposed",
        output=f"{node.outputs[0].name}.transposed", dtype=node.outputs[0].dtype,
        metadata=dict(node.metadata_props), **attributes,
    )  # fmt: skip
    value.shape = editor.ir.Shape(codes.T.shape)
    return value


def _in_blocks(editor: Editor, node: Any) -> int:
    """Give a [K, N] weight with one scale per column (or one in all) the same scales in blocks along K."""
    codes, scale, zero_point = (array_of(value) for value in node.inputs)
    if (
        attribute(node, "block_size", 0)
        or codes.ndim != 2
        or (scale.ndim == 1 and attribute(node, "axis", 1) % 2 != 1)
    ):
        return 0
    length = codes.shape[0]
    block = LARGEST_BLOCK
    while block > SMALLEST_BLOCK and length % block:
        block //= 2
    if length % block:
        return 0
    shape = (length // block, codes.shape[1])
    scale, zero_point = (np.broadcast_to(values.reshape(1, -1), shape) for values in (scale, zero_point))
    inputs = [
        node.inputs[0],
        editor.constant(scale, node.inputs[1].dtype, f"{node.inputs[1].name}.blocks"),
        editor.constant(zero_point, node.inputs[2].dtype, f"{node.inputs[2].name}.blocks"),
    ]
    value = editor.node(
        "DequantizeLinear", inputs, before=node, name=f"{node.name}_blocks",
        output=f"{node.outputs[0].name}.blocks", like=node.outputs[0], dtype=node.outputs[0].dtype,
        metadata=dict(node.metadata_props), axis=0, block_size=block,
    )  # fmt: skip
    editor.replace(node.outputs[0], value)
    return 1
