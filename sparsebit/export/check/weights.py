"""Weights as they are stored in a file, read back as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.lower import SCALED
from sparsebit.export.packages import require


def stored_weights(proto: Any) -> dict[str, Any]:
    """Every quantized weight of a file by the name of its tensor, dequantized, in the shape the model has it."""
    helper = require("onnx").numpy_helper
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    found = {}
    # 4-bit codes on their way to an 8-bit kernel, 8-bit floats on their way to float
    widened = {node.output[0]: node.input[0] for node in proto.graph.node if node.name.endswith("/Widen")}
    for node in proto.graph.node:
        name, _, kind = node.name.rpartition("/")
        if node.op_type == "Mul" and kind == SCALED:  # 8-bit floats, unpacked by a cast
            codes, scale = tensors[widened[node.input[0]]], tensors[node.input[1]]
            found[name] = helper.to_array(codes).astype(np.float32) * helper.to_array(scale)
            continue
        if node.op_type != "DequantizeLinear" or not kind.startswith("DequantizeLinear"):
            continue
        stored = widened.get(node.input[0], node.input[0])
        if stored not in tensors:
            continue
        codes, scale, zero_point = (helper.to_array(tensors[value]) for value in (stored, *node.input[1:3]))
        settings = {attribute.name: attribute.i for attribute in node.attribute}
        numbers = _dequantized(
            codes, scale, zero_point, settings.get("axis", 1), settings.get("block_size", 0)
        )
        found[name] = numbers.T if "transposed" in kind else numbers
    return found


def _dequantized(codes: Any, scale: Any, zero_point: Any, axis: int, block: int) -> Any:
    if block:
        length = codes.shape[axis]
        scale, zero_point = (
            np.take(np.repeat(v, block, axis=axis), range(length), axis=axis) for v in (scale, zero_point)
        )
    elif scale.ndim == 1:
        shape = [-1 if place == axis else 1 for place in range(codes.ndim)]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    wide = codes.astype(np.float32) - zero_point.astype(np.float32)
    return wide * scale.astype(np.float32)
