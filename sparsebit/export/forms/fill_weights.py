"""Stretch weights to all 8 bits that integer kernels read, so that biases are rounded to finer steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import PRODUCTS, Editor, array_of, attribute, quantized_source, readers

LARGEST = {"INT8": 127, "UINT8": 255, "INT4": 127, "UINT4": 255}  # codes that an 8-bit kernel reads
PAIR = 2**15 - 1  # CPUs without VNNI add two products in 16 bits


def fill_weight(editor: Editor, weight: Any) -> bool:
    """Multiply the quantized values of a weight by a power of two and divide its scales by it.

    No number changes. But kernels round the bias to steps of input scale times weight scale, which would be coarse
    with the scale of 2 bits, or with a learned one. Values of 4 bits are stored as they are, and widened when the file
    is loaded (constant expressions are folded then): kernels accept only 8-bit weights.
    """
    factors = filling(weight)
    narrow = weight.inputs[0].dtype is not None and weight.inputs[0].dtype.name in ("INT4", "UINT4")
    if factors is None or not (narrow or np.any(factors > 1)):
        return False
    (_widen if narrow else _multiply)(editor, weight, factors)
    return True


def filling(weight: Any) -> Any:
    """The factor for each channel of a DequantizeLinear, in the shape of its scales.

    None if no integer kernel reads it; weights in blocks have a separate kernel.
    """
    codes, scale, kind = array_of(weight.inputs[0]), array_of(weight.inputs[1]), weight.inputs[0].dtype
    if codes is None or kind is None or kind.name not in LARGEST or attribute(weight, "block_size", 0):
        return None
    inputs = [
        source
        for reader in readers(weight.outputs[0])
        if reader.op_type in PRODUCTS and reader.inputs[1] is weight.outputs[0]
        if (source := quantized_source(reader.inputs[0])) is not None
    ]
    if not inputs:
        return None
    largest = LARGEST[kind.name]
    if kind.name in ("INT8", "INT4"):
        largest = min(largest, max(64, PAIR // (2 * max(map(_largest_code, inputs)))))
    axis = attribute(weight, "axis", 1) % max(codes.ndim, 1)
    others = tuple(place for place in range(codes.ndim) if place != axis or scale.ndim == 0)
    ends = np.maximum(codes.max(axis=others).astype(np.int64), -codes.min(axis=others).astype(np.int64))
    ends = np.maximum(np.maximum(ends, np.abs(array_of(weight.inputs[2]).astype(np.int64))), 1)
    return (2 ** np.floor(np.log2(np.maximum(largest // ends, 1)))).astype(np.int64)


def _largest_code(dequantize: Any) -> int:
    maker = dequantize.inputs[0].producer()
    end = array_of(maker.inputs[2]) if maker is not None and maker.op_type == "Clip" else None
    return 255 if end is None else max(1, int(end))


def _multiply(editor: Editor, weight: Any, factors: Any) -> None:
    codes, zero_point = (array_of(weight.inputs[place]) for place in (0, 2))
    kind, along = weight.inputs[0].dtype, _along(weight, codes, factors)
    filled = codes * along.astype(codes.dtype)
    weight.replace_input_with(0, editor.constant(filled, kind, f"{weight.inputs[0].name}.filled"))
    _rescale(editor, weight, zero_point * factors.astype(zero_point.dtype), kind, factors)


def _widen(editor: Editor, weight: Any, factors: Any) -> None:
    types, name = editor.ir.DataType, weight.name.rpartition("/")[0]
    codes, zero_point = weight.inputs[0], array_of(weight.inputs[2]).astype(np.int64)
    kind = types.INT8 if codes.dtype == types.INT4 else types.UINT8

    def put(op_type: str, inputs: list[Any], to: Any, word: str) -> Any:
        more: dict[str, Any] = {"to": int(to)} if op_type == "Cast" else {}
        return editor.node(
            op_type, inputs, before=weight, name=f"{name}/{word}", like=codes, dtype=to, **more
        )

    fills = bool(np.any(factors > 1))
    wide = put("Cast", [codes], types.INT32 if fills else kind, "Widen")
    if fills:  # runtimes multiply 32-bit integers, not 8-bit ones
        times = editor.constant(_along(weight, array_of(codes), factors), types.INT32, f"{name}.factor")
        wide = put("Cast", [put("Mul", [wide, times], types.INT32, "Fill")], kind, "Narrow")
    weight.replace_input_with(0, wide)
    _rescale(editor, weight, zero_point * factors, kind, factors)


def _rescale(editor: Editor, weight: Any, zero_point: Any, kind: Any, factors: Any) -> None:
    scale = array_of(weight.inputs[1])
    scale = scale / factors.astype(scale.dtype)
    weight.replace_input_with(1, editor.constant(scale, weight.inputs[1].dtype, weight.inputs[1].name))
    weight.replace_input_with(2, editor.constant(zero_point, kind, weight.inputs[2].name))


def _along(weight: Any, codes: Any, factors: Any) -> Any:
    """The factors in a shape that multiplies the codes."""
    if factors.ndim == 0:
        return factors
    axis = attribute(weight, "axis", 1) % codes.ndim
    return factors.reshape([-1 if place == axis else 1 for place in range(codes.ndim)])
