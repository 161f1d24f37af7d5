"""Weights as they are stored in a file, read back as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparsebit.export.forms.gather_rows import ROW_SCALES, ROWS
from sparsebit.export.forms.lower import SCALED
from sparsebit.runtime.packages import require


def stored_weights(proto: Any, folder: Path | str = "") -> Iterator[tuple[str, Any]]:
    """Every quantized weight of a file with the name of its tensor, dequantized, in the shape the model has it.

    One at a time, so that those of a model in two files need not be in memory together; the second is in ``folder``.
    """
    helper = require("onnx").numpy_helper

    def array(tensor: Any) -> Any:
        return helper.to_array(tensor, base_dir=str(folder))

    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    # 4-bit codes on their way to an 8-bit kernel, 8-bit floats on their way to float, rows of a table
    widened: dict[str, str] = {}
    for node in proto.graph.node:
        if _word(node) in ("Widen", ROWS):
            widened[node.output[0]] = widened.get(node.input[0], node.input[0])
    filled: dict[str, Any] = {}
    for node in proto.graph.node:
        word = _word(node)
        if word == "Fill" and node.input[0] in widened:
            widened[node.output[0]] = widened[node.input[0]]
            filled[node.output[0]] = array(tensors[node.input[1]])
        elif word == "Narrow" and node.input[0] in filled:
            widened[node.output[0]] = widened[node.input[0]]
            filled[node.output[0]] = filled[node.input[0]]
    for node in proto.graph.node:
        name, _, kind = node.name.rpartition("/")
        if node.op_type == "Mul" and kind == SCALED:  # 8-bit floats, unpacked by a cast
            codes, scale = tensors.get(widened[node.input[0]]), tensors[node.input[1]]
            if codes is not None:
                yield name, array(codes).astype(np.float32) * array(scale)
            continue
        if node.op_type == "Gather" and _word(node) == ROW_SCALES:  # a table whose rows have their own scales
            numbers = array(tensors[widened[_rows_of(proto, name).output[0]]]).astype(np.float32)
            zeros = [other for other in proto.graph.node if other.name == f"{name}/RowZeroPoints"]
            if zeros:
                numbers = numbers - array(tensors[zeros[0].input[0]])
            yield name, numbers * array(tensors[node.input[0]])
            continue
        if node.op_type != "DequantizeLinear" or not kind.startswith("DequantizeLinear"):
            continue
        stored = widened.get(node.input[0], node.input[0])
        if stored not in tensors:
            continue
        codes, scale, zero_point = (array(tensors[value]) for value in (stored, *node.input[1:3]))
        codes = codes.astype(np.int32) * filled[node.input[0]] if node.input[0] in filled else codes
        settings = {attribute.name: attribute.i for attribute in node.attribute}
        numbers = _dequantized(
            codes, scale, zero_point, settings.get("axis", 1), settings.get("block_size", 0)
        )
        yield name, numbers.T if "transposed" in kind else numbers


def _word(node: Any) -> str:
    """What a node does to a weight: the last part of its name, without a number that keeps names apart."""
    return re.sub(r"_\d+$", "", node.name.rpartition("/")[2])


def _rows_of(proto: Any, name: str) -> Any:
    return next(
        node for node in proto.graph.node if node.name.startswith(f"{name}/{ROWS}") and _word(node) == ROWS
    )


def _dequantized(codes: Any, scale: Any, zero_point: Any, axis: int, block: int) -> Any:
    if block:
        length = codes.shape[axis]
        scale, zero_point = (
            np.take(np.repeat(v, block, axis=axis), range(length), axis=axis) for v in (scale, zero_point)
        )
    elif scale.ndim == 1:
        shape = [-1 if place == axis % codes.ndim else 1 for place in range(codes.ndim)]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    wide = codes.astype(np.float32) - zero_point.astype(np.float32)
    return wide * scale.astype(np.float32)
