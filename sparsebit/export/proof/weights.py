"""Weights as they are stored in a file, read back as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparsebit.export.forms.editor import SCALED, array_of, attribute
from sparsebit.export.forms.gather_rows import ROWS, ROWS_SCALED


def stored_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Every quantized weight of an ``onnx_ir`` model with its name, dequantized, in the shape the torch model has it.

    One at a time, so that those of a model in two files need not be in memory together.
    """
    for node in model.graph:
        name, _, kind = node.name.rpartition("/")
        codes = _stored(node.inputs[0]) if node.inputs else None
        if codes is None:
            continue
        if node.op_type == "Mul" and kind == SCALED:  # 8-bit floats, unpacked by a cast
            yield name, codes.astype(np.float32) * array_of(node.inputs[1])
        elif node.op_type == "Mul" and _word(node) == ROWS_SCALED:  # rows of a table with scales of their own
            yield name, codes * array_of(node.inputs[1].producer().inputs[0])
        elif node.op_type == "DequantizeLinear" and kind.startswith("DequantizeLinear"):
            scale, zero_point = (array_of(value) for value in node.inputs[1:3])
            axis, block = attribute(node, "axis", 1), attribute(node, "block_size", 0)
            numbers = _dequantized(codes, scale, zero_point, axis, block)
            yield name, numbers.T if "transposed" in kind else numbers


def _stored(value: Any) -> Any:
    """The quantized values behind the steps that bring them into a kernel's form; None if they are not constant."""
    constant, node = array_of(value), value.producer() if value is not None else None
    if constant is not None or node is None:
        return constant
    word = _word(node)
    if word in ("Widen", "Narrow", ROWS):
        return _stored(node.inputs[0])
    if word not in ("Fill", "RowNumbers", "Centred") or (codes := _stored(node.inputs[0])) is None:
        return None
    if word == "Fill":
        return codes.astype(np.int32) * array_of(node.inputs[1])
    numbers = codes.astype(np.float32)
    return numbers if word == "RowNumbers" else numbers - array_of(node.inputs[1].producer().inputs[0])


def _word(node: Any) -> str:
    """What a node does to a weight: the last part of its name, without a number that keeps names apart."""
    return re.sub(r"_\d+$", "", node.name.rpartition("/")[2])


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
