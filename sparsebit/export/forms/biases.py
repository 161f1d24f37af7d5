"""Biases for integer kernels: in steps of input scale times weight scale, unless that rounding would be visible."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import (
    Editor,
    array_of,
    attribute,
    dequantized,
    only_reader,
    quantized_source,
    readers,
)
from sparsebit.export.forms.fill_weights import filling
from sparsebit.export.forms.matmul_layout import as_matmul
from sparsebit.export.forms.rewrites import ACTIVATIONS, LIMITS

SEEN_IN_FLOAT = 5e-5  # of the largest number: the most by which a rounded bias may change a float result
SEEN_OF_A_STEP = 2e-3  # or this fraction of a step, if it is quantized next: one value in 1000 changes
SEEN_OF_A_CONV = 0.02  # of a step: the kernel cannot add a float bias, and float is slow
MIXING = ("LayerNormalization", "Softmax", "ReduceMean", "ReduceSum", "LogSoftmax")  # no activations


def float_bias(editor: Editor, node: Any) -> bool:
    """Make the bias of a convolution separate if its kernel would round it visibly.

    The convolution then runs in float. This happens if an input has few and wide steps: 2 bits for a range it does not
    use.
    """
    bias, quantize = array_of(node.inputs[2]) if len(node.inputs) > 2 else None, _quantized_next(node)
    scales = _product_scale(node)
    if bias is None or quantize is None or scales is None or scales.shape not in ((), bias.shape):
        return False
    error = np.abs(np.rint(bias / scales) * scales - bias).max(initial=0)
    if error <= SEEN_OF_A_CONV * float(array_of(quantize.inputs[1])):
        return False
    spatial = array_of(dequantized(node.inputs[1]).inputs[0]).ndim - 2
    negated = _negated(editor, node.inputs[2], bias.reshape((1, -1, *[1] * spatial)))
    node.replace_input_with(2, None)
    editor.put_behind(node.outputs[0], "Sub", [negated], name=f"{node.name}/Sub")
    return True


def _quantized_next(node: Any) -> Any:
    """The QuantizeLinear with one scale after a convolution and what is fused into it, or None."""
    reader = only_reader(node.outputs[0])
    while reader is not None and reader.op_type in ("MaxPool", *ACTIVATIONS):
        reader = only_reader(reader.outputs[0])
    if reader is None or reader.op_type != "QuantizeLinear" or np.ndim(array_of(reader.inputs[1])) != 0:
        return None
    return reader


def integer_bias(editor: Editor, node: Any) -> bool:
    """Store the bias of a quantized Linear as int32 with the scale of the products.

    The scale must be exactly input scale times weight scale, or ONNX Runtime stays in float. Convolutions keep theirs
    in float, because there the runtime does the same by itself.

    If rounding to that scale would be visible in the result, the bias stays in float, separate from the product. It
    also stays in float after a product of more than two dimensions with free ones: the runtime adds it apart there
    anyway.
    """
    where = (node, 2) if node.op_type == "Gemm" else _added(node)
    if where is None or len(where[0].inputs) <= where[1]:
        return False
    reader, index = where
    value = reader.inputs[index]
    bias, scales = array_of(value), _product_scale(node)
    if bias is None or bias.ndim != 1 or bias.dtype != np.float32:
        return False
    if scales is None or scales.shape not in ((), bias.shape):
        return False
    codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
    error = float(np.abs(codes * scales - bias).max(initial=0))
    largest = editor.markers.largest.get(dequantized(node.inputs[1]).name.rpartition("/")[0], np.inf)
    shows = error > _visible(reader.outputs[0]) * largest
    if shows or np.abs(codes).max(initial=0) >= 2**31 or (editor.dynamic and node.op_type == "MatMul"):
        _keep_apart(editor, node, reader, index)
        return False
    int32, float32 = editor.ir.DataType.INT32, editor.ir.DataType.FLOAT
    inputs = [
        editor.constant(codes.astype(np.int32), int32, f"{value.name}.codes"),
        editor.constant(scales, float32, f"{value.name}.scale"),
        editor.constant(np.zeros(scales.shape), int32, f"{value.name}.zero_point"),
    ]
    attributes: dict[str, Any] = {"axis": 0} if scales.ndim else {}
    stored = editor.node(
        "DequantizeLinear", inputs, before=reader, name=f"{value.name}/DequantizeBias",
        output=f"{value.name}.quantized", like=value, dtype=float32, **attributes,
    )  # fmt: skip
    reader.replace_input_with(index, stored)
    return True


def _visible(result: Any) -> float:
    """The smallest visible change of a result, as a fraction of its largest number, also if it is quantized next."""
    waiting, seen, steps = [result], {result}, 0
    while waiting:
        for reader in readers(waiting.pop(0)):
            if reader.op_type == "QuantizeLinear":
                steps = max(steps, _steps(reader))
                continue
            alone = all(value in seen or array_of(value) is not None for value in reader.inputs if value)
            if alone and reader.op_type not in MIXING and reader.outputs[0] not in seen:
                waiting.append(reader.outputs[0])
                seen.add(reader.outputs[0])
    return SEEN_OF_A_STEP / steps if steps else SEEN_IN_FLOAT


def _steps(quantize: Any) -> int:
    """The number of steps of the grid of a QuantizeLinear and a Clip after it."""
    low, high = LIMITS.get(quantize.outputs[0].dtype.name, (0, 2**16 - 1))
    clip = only_reader(quantize.outputs[0])
    if clip is not None and clip.op_type == "Clip":
        low, high = (int(array_of(end)) for end in clip.inputs[1:3])
    return max(1, high - low)


def _keep_apart(editor: Editor, node: Any, reader: Any, index: int) -> None:
    """Keep a bias in float and subtract its negative: an addition would be fused into a float product."""
    if node.op_type == "Gemm":
        as_matmul(editor, node, apart=True)
        return
    value = reader.inputs[index]
    inputs = [node.outputs[0], _negated(editor, value, array_of(value))]
    editor.swap(
        reader, editor.node("Sub", inputs, before=reader, name=f"{reader.name}/Sub", like=reader.outputs[0])
    )


def _negated(editor: Editor, bias: Any, numbers: Any) -> Any:
    return editor.constant(-numbers, bias.dtype, f"{bias.name}.negated")


def _added(node: Any) -> tuple[Any, int] | None:
    """The Add directly after a MatMul, and the index of its other input."""
    reader = only_reader(node.outputs[0])
    if reader is None or reader.op_type != "Add":
        return None
    return reader, 1 if reader.inputs[0] is node.outputs[0] else 0


def _product_scale(node: Any) -> Any:
    """Input scale times weight scale, in float32 as the runtime multiplies.

    None if one of the two is not quantized, or if the scales vary inside a product.
    """
    weight, source = dequantized(node.inputs[1]), quantized_source(node.inputs[0])
    if weight is None or source is None or array_of(weight.inputs[0]) is None:
        return None
    ours, theirs = array_of(source.inputs[1]), array_of(weight.inputs[1])
    if attribute(weight, "block_size", 0) or ours.dtype != np.float32 or theirs.dtype != np.float32:
        return None
    factors = filling(weight)
    theirs = theirs if factors is None else theirs / factors.astype(theirs.dtype)
    if theirs.ndim == 0:
        return (ours * theirs).reshape(())
    turned = node.op_type == "Conv" or (node.op_type == "Gemm" and attribute(node, "transB", 0))
    axis = attribute(weight, "axis", 1) % array_of(weight.inputs[0]).ndim
    return ours * theirs if theirs.ndim == 1 and axis == (0 if turned else 1) else None
