"""A hard sigmoid between quantized tensors as an addition: the range of its grid does the clipping."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import Editor, array_of, attribute, dequantized, only_reader


def hard_sigmoid(editor: Editor, node: Any) -> bool:
    """Write ``clip(a * x + b, 0, 1)`` before a QuantizeLinear as ``clip(x + b / a, 0, 1 / a)`` with scale / ``a``.

    The quantized values are the same. ONNX Runtime has no integer kernel for HardSigmoid. It has one for the addition,
    and a convolution adds ``b / a`` with its bias. ``clip_codes`` then moves the Clip to the quantized values.
    """
    quantize, alpha, beta = (
        only_reader(node.outputs[0]),
        attribute(node, "alpha", 0.2),
        attribute(node, "beta", 0.5),
    )
    if quantize is None or quantize.op_type != "QuantizeLinear" or alpha <= 0:
        return False
    scale, kind = array_of(quantize.inputs[1]), node.outputs[0].dtype or editor.ir.DataType.FLOAT
    if scale is None or scale.ndim or kind.name != "FLOAT":
        return False
    shifted = _shifted(editor, node, np.float32(beta / alpha), kind)
    if shifted is None:
        return False
    ends = [editor.constant(np.float32(end), kind, f"{node.name}.bound") for end in (0.0, 1.0 / alpha)]
    clipped = editor.node(
        "Clip", [shifted, *ends], before=node, name=f"{node.name}/Clip", like=node.outputs[0]
    )
    wider = editor.constant(
        np.float32(scale / np.float32(alpha)), kind, f"{quantize.inputs[1].name}.unscaled"
    )
    quantize.replace_input_with(1, wider)
    editor.swap(node, clipped)
    return True


def _shifted(editor: Editor, node: Any, shift: Any, kind: Any) -> Any:
    """The input plus a number, if that is computed on integers: in the bias of a convolution, or as QLinearAdd."""
    value, maker = node.inputs[0], node.inputs[0].producer()
    if maker is None or maker.op_type == "DequantizeLinear":
        if dequantized(value) is None or np.ndim(array_of(maker.inputs[1])):
            return None
        uint8 = editor.ir.DataType.UINT8
        number = [(np.uint8(1), uint8, "one"), (shift, kind, "shift"), (np.uint8(0), uint8, "zero")]
        inputs = [editor.constant(entry, dtype, f"{node.name}.{word}") for entry, dtype, word in number]
        name = f"{node.name}/Shift"
        constant = editor.node("DequantizeLinear", inputs, before=node, name=name, dtype=kind)
        return editor.node("Add", [value, constant], before=node, name=f"{node.name}/Add", like=value)
    if (
        maker.op_type != "Conv"
        or only_reader(value) is not node
        or None in map(dequantized, maker.inputs[:2])
    ):
        return None
    codes, old = array_of(dequantized(maker.inputs[1]).inputs[0]), maker.inputs[2:3]
    bias = array_of(old[0]) if old and old[0] is not None else np.zeros(np.shape(codes)[:1], np.float32)
    if codes is None or bias is None:
        return None
    maker.resize_inputs(3)
    maker.replace_input_with(2, editor.constant(bias + shift, kind, f"{maker.name}.shifted_bias"))
    return value
