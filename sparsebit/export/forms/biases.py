"""Biases as integer kernels take them: in steps of input scale times weight scale, unless that rounding would show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsebit.export.forms.editor import Editor, array_of, attribute, only_reader, readers
from sparsebit.export.forms.fill_weights import filling
from sparsebit.export.forms.lower import is_dequantized, quantized_source
from sparsebit.export.forms.matmul_layout import as_matmul
from sparsebit.export.forms.rewrites import LIMITS

SEEN_IN_FLOAT = 5e-5  # of the largest number: a rounded bias may move a float result by this
SEEN_OF_A_STEP = 2e-3  # or by this part of a step, if codes come next: then one in a thousand moves
SEEN_OF_A_CONV = 0.02  # of a step: its kernel cannot add a float bias, and in float it is slow
MIXING = frozenset(
    {"LayerNormalization", "Softmax", "ReduceMean", "ReduceSum", "LogSoftmax"}
)  # no activations


def float_biases(editor: Editor) -> int:
    """Take biases out of convolutions whose kernel would round them so coarsely that it shows; returns how many.

    They run in float then. It happens where an input has few and wide steps: 2 bits over a range it does not use.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type == "Conv" and len(node.inputs) > 2]:
        weight, source = is_dequantized(node.inputs[1]), quantized_source(node.inputs[0])
        bias, quantize = array_of(node.inputs[2]), _quantized_next(node)
        if weight is None or source is None or bias is None or quantize is None:
            continue
        scales = _product_scale(node, source, weight)
        if scales is None or scales.shape not in ((), bias.shape):
            continue
        error = np.abs(np.rint(bias / scales) * scales - bias).max(initial=0)
        if error <= SEEN_OF_A_CONV * float(array_of(quantize.inputs[1])):
            continue
        shape = (1, -1, *[1] * (array_of(weight.inputs[0]).ndim - 2))
        negated = editor.constant(
            -bias.reshape(shape), node.inputs[2].dtype, f"{node.inputs[2].name}.negated"
        )
        node.replace_input_with(2, None)
        result = node.outputs[0]
        editor.put_behind(result, "Sub", [negated], name=f"{node.name}/Sub", output=f"{result.name}_sum")
        changed += 1
    return changed


def _quantized_next(node: Any) -> Any:
    """The QuantizeLinear with one scale behind a convolution and what is fused into it, or None."""
    reader = only_reader(node.outputs[0])
    while reader is not None and reader.op_type in ("Relu", "Clip", "MaxPool"):
        reader = only_reader(reader.outputs[0])
    if reader is None or reader.op_type != "QuantizeLinear" or np.ndim(array_of(reader.inputs[1])) != 0:
        return None
    return reader


def integer_biases(editor: Editor, largest: Mapping[str, float], *, dynamic: bool) -> int:
    """Store the bias of a quantized Linear as int32 with the scale of the products; returns how many.

    The scale must be exactly input scale times weight scale, or ONNX Runtime stays in float. Convolutions keep theirs
    in float, because there the runtime does the same by itself.

    Where rounding to that scale would show in the result, the bias stays in float, apart from the product. ``largest``
    is the largest number of the result by the name of the weight. It also stays in float behind a product of
    more than two dimensions that has ``dynamic`` ones: the runtime adds it apart there anyway.
    """
    changed = 0
    for node in [node for node in editor.graph if node.op_type in ("Gemm", "MatMul")]:
        weight, source = is_dequantized(node.inputs[1]), quantized_source(node.inputs[0])
        if weight is None or source is None or array_of(weight.inputs[0]) is None:
            continue
        where = (node, 2) if node.op_type == "Gemm" else _added(node)
        if where is None or len(where[0].inputs) <= where[1] or where[0].inputs[where[1]] is None:
            continue
        reader, index = where
        bias = array_of(reader.inputs[index])
        scales = _product_scale(node, source, weight)
        if bias is None or bias.ndim != 1 or bias.dtype != np.float32 or scales is None:
            continue
        if scales.shape not in ((), bias.shape):
            continue
        codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
        error = float(np.abs(codes * scales - bias).max(initial=0))
        shows = error > _visible(reader.outputs[0]) * largest.get(weight.name.rpartition("/")[0], np.inf)
        too_large = np.abs(codes).max(initial=0) >= 2**31
        if too_large or shows or (dynamic and node.op_type == "MatMul"):
            _keep_apart(editor, node, reader, index, bias)
            continue
        reader.replace_input_with(index, _stored(editor, reader, reader.inputs[index], codes, scales))
        changed += 1
    editor.sweep()
    return changed


def _visible(result: Any) -> float:
    """What part of the largest number of a result shows: of a step, if codes come next or behind an activation."""
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
    """The number of steps of the grid a QuantizeLinear and a Clip behind it make."""
    low, high = LIMITS.get(quantize.outputs[0].dtype.name, (0, 2**16 - 1))
    clip = only_reader(quantize.outputs[0])
    if clip is not None and clip.op_type == "Clip":
        low, high = (int(array_of(end)) for end in clip.inputs[1:3])
    return max(1, high - low)


def _keep_apart(editor: Editor, node: Any, reader: Any, index: int, bias: Any) -> None:
    """Leave a bias in float, and subtract its negative: a sum would undo the integer product."""
    if node.op_type == "Gemm":
        as_matmul(editor, node, apart=True)
        return
    name = reader.inputs[index].name
    negated = editor.constant(-bias, reader.inputs[index].dtype, f"{name}.negated")
    value = editor.node(
        "Sub", [node.outputs[0], negated], before=reader, name=f"{reader.name}/Sub",
        output=f"{reader.outputs[0].name}_sum", like=reader.outputs[0], dtype=reader.outputs[0].dtype,
    )  # fmt: skip
    editor.replace(reader.outputs[0], value)
    editor.graph.remove(reader, safe=True)


def _stored(editor: Editor, reader: Any, bias: Any, codes: Any, scales: Any) -> Any:
    int32, float32 = editor.ir.DataType.INT32, editor.ir.DataType.FLOAT
    name = bias.name
    inputs = [
        editor.constant(codes.astype(np.int32), int32, f"{name}.codes"),
        editor.constant(scales, float32, f"{name}.scale"),
        editor.constant(np.zeros(scales.shape), int32, f"{name}.zero_point"),
    ]
    attributes: dict[str, Any] = {"axis": 0} if scales.ndim else {}
    return editor.node(
        "DequantizeLinear", inputs, before=reader, name=f"{name}/DequantizeBias",
        output=f"{name}.quantized", like=bias, dtype=float32, **attributes,
    )  # fmt: skip


def _added(node: Any) -> tuple[Any, int] | None:
    """The Add right behind a MatMul, and the place of its other input."""
    reader = only_reader(node.outputs[0])
    if reader is None or reader.op_type != "Add":
        return None
    return reader, 1 if reader.inputs[0] is node.outputs[0] else 0


def _product_scale(node: Any, source: Any, weight: Any) -> Any:
    """Input scale times weight scale, in float32 as the runtime multiplies; None where they vary inside a product."""
    ours, theirs = array_of(source.inputs[1]), array_of(weight.inputs[1])
    if attribute(weight, "block_size", 0) or ours.dtype != np.float32 or theirs.dtype != np.float32:
        return None
    factors = filling(weight)
    theirs = theirs if factors is None else theirs / factors.astype(theirs.dtype)
    if theirs.ndim == 0:
        return (ours * theirs).reshape(())
    if node.op_type == "Conv":
        return ours * theirs if theirs.ndim == 1 and attribute(weight, "axis", 1) == 0 else None
    output_axis = 0 if node.op_type == "Gemm" and attribute(node, "transB", 0) else 1
    if theirs.ndim != 1 or attribute(weight, "axis", 1) % 2 != output_axis:
        return None
    return ours * theirs
