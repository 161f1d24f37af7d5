"""The file's side of the comparison: its stored weights, its pieces between quantized tensors, and its rounding.

In the complete file one value that is rounded differently changes later values, and after twenty layers nothing can be
concluded from a difference. If the file is cut, each piece is compared separately, with the kernels that the runtime
uses for the complete file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsebit.export.forms.editor import PRODUCTS, SCALED, array_of, attribute, maker_of
from sparsebit.export.forms.fourth_channel import PADDED
from sparsebit.export.forms.gather_rows import ROWS, ROWS_SCALED
from sparsebit.runtime.packages import require

GAIN = 1.2  # the steepest activation between a product and its values: that of gelu and silu is 1.13 at most
FLOAT_NOISE = 2.0**-20  # of the numbers that a float32 result is computed from: the accuracy of their sums
_ENDS = (("DequantizeLinear", "DequantizeLinear"), ("Mul", SCALED))  # the last nodes of a quantized tensor


@dataclass
class CutModel:
    """The cut model: for each cut tensor, the input after the cut and the output before it."""

    proto: Any
    feeds: dict[str, str] = field(default_factory=dict)  # tensor -> graph input
    reads: dict[str, str] = field(default_factory=dict)  # tensor -> graph output
    as_numbers: set[str] = field(default_factory=set)  # cut after DequantizeLinear: 8-bit floats
    sources: dict[str, set[str]] = field(default_factory=dict)  # graph output -> tensors it is computed from


def cut(model: Any, ranks: dict[str, int]) -> CutModel:
    """Cut an ``onnx_ir`` model, which is changed, at every activation in ``ranks``: names and numbers of dimensions."""
    ir = require("onnx_ir")
    graph, found = model.graph, CutModel(None)
    for node in list(graph):
        name, _, kind = node.name.rpartition("/")
        if (node.op_type, kind) not in _ENDS or name not in ranks:
            continue
        as_numbers = kind == SCALED or "FLOAT8" in node.inputs[2].dtype.name
        maker = node.inputs[0].producer()
        first = maker if maker is not None and _word(maker) == PADDED else node  # to read the values
        read = node.outputs[0] if as_numbers else first.inputs[0]
        dtype = ir.DataType.FLOAT if as_numbers else node.inputs[2].dtype
        shape = ir.Shape([f"{name}_{axis}" for axis in range(ranks[name])])
        given = ir.Value(name=f"{read.name}.given", shape=shape, type=ir.TensorType(dtype))
        if as_numbers:
            found.as_numbers.add(name)
            for user, place in list(read.uses()):
                user.replace_input_with(place, given)
        else:
            first.replace_input_with(0, given)
        graph.inputs.append(given)
        if read not in graph.outputs:
            read.shape, read.type = shape, ir.TensorType(dtype)
            graph.outputs.append(read)
        found.feeds[name], found.reads[name] = given.name, read.name
    tensors = {given: name for name, given in found.feeds.items()}
    found.sources = {value.name: _sources(value, tensors) for value in graph.outputs}
    found.proto = ir.serde.serialize_model(model)
    return found


def _sources(value: Any, tensors: dict[str, str]) -> set[str]:
    """The cut tensors that a value is computed from."""
    waiting, seen, found = [value], set(), set()
    while waiting:
        current = waiting.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        if current.name in tensors:
            found.add(tensors[current.name])
        elif (node := current.producer()) is not None:
            waiting += node.inputs
    return found


def rounding_steps(model: Any, largest_input: float) -> dict[str, float]:
    """For every quantized activation of an ``onnx_ir`` model, by how many steps of its grid kernels may move it.

    The bias of a product of integers is a multiple of input scale times weight scale, so its error is half of that.
    A result computed in float32 has an error in proportion to the largest number involved: the mean of a
    normalized tensor is nothing else. ``largest_input`` is the largest number that the model is given.
    """
    found = {}
    for node in model.graph:
        name, _, kind = node.name.rpartition("/")
        if node.op_type == "QuantizeLinear" and kind == "QuantizeLinear":
            scale = array_of(node.inputs[1])
            error = _error_before(node.inputs[0], largest_input)
            found[name] = error / (1.0 if scale is None else float(np.min(scale)))
    return found


def _error_before(value: Any, largest_input: float) -> float:
    """The error of the computation between the preceding quantized tensors and this value."""
    waiting, seen, biases, largest = [value], set(), 0.0, 0.0
    while waiting:
        current = waiting.pop()
        if current is None:
            continue
        node = current.producer()
        if node is None:
            largest = max(largest, largest_input if current.is_graph_input() else 0.0)
        elif node.op_type == "DequantizeLinear":
            scale, codes = array_of(node.inputs[1]), array_of(node.inputs[0])
            if codes is None and scale is not None:
                largest = max(largest, 255 * float(np.max(scale)))
        elif node not in seen:
            seen.add(node)
            biases += _half_step(node) if node.op_type in PRODUCTS else 0.0
            waiting += node.inputs
    return GAIN * biases + FLOAT_NOISE * largest


def _half_step(product: Any) -> float:
    scales = []
    for value in product.inputs[:2]:
        maker = maker_of(value)
        while maker is not None and maker.op_type != "DequantizeLinear":
            maker = maker_of(maker.inputs[0]) if maker.inputs else None
        scale = array_of(maker.inputs[1]) if maker is not None else None
        if scale is None:
            return 0.0
        scales.append(float(np.max(scale)))
    return 0.5 * scales[0] * scales[1]


def stored_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Every quantized weight of an ``onnx_ir`` model with its name, dequantized, in the shape the torch model has it.

    They are yielded one at a time, so that not all weights of a model in two files are in memory.
    """
    for node in model.graph:
        name, _, kind = node.name.rpartition("/")
        codes = _stored(node.inputs[0]) if node.inputs else None
        if codes is None:
            continue
        if node.op_type == "Mul" and kind == SCALED:  # 8-bit floats, unpacked by a cast
            yield name, codes.astype(np.float32) * array_of(node.inputs[1])
        elif node.op_type == "Mul" and _word(node) == ROWS_SCALED:  # rows of a table
            yield name, codes * _of_rows(node.inputs[1])
        elif node.op_type == "DequantizeLinear" and kind.startswith("DequantizeLinear"):
            scale, zero_point = (array_of(value) for value in node.inputs[1:3])
            axis, block = attribute(node, "axis", 1), attribute(node, "block_size", 0)
            numbers = _dequantized(codes, scale, zero_point, axis, block)
            yield name, numbers.T if "transposed" in kind else numbers


def _stored(value: Any) -> Any:
    """The quantized values after the operators that bring them into a kernel's form; None if they are not constant."""
    constant, node = array_of(value), value.producer() if value is not None else None
    if constant is not None or node is None:
        return constant
    word = _word(node)
    if word in ("Widen", "Narrow", ROWS, PADDED):
        return _stored(node.inputs[0])
    if word not in ("Fill", "RowNumbers", "Centred") or (codes := _stored(node.inputs[0])) is None:
        return None
    if word == "Fill":
        return codes.astype(np.int32) * array_of(node.inputs[1])
    numbers = codes.astype(np.float32)
    return numbers if word == "RowNumbers" else numbers - _of_rows(node.inputs[1])


def _of_rows(value: Any) -> Any:
    """What the rows of a table are multiplied by, or what is subtracted: one number for all, or one for each row."""
    one = array_of(value)
    return array_of(value.producer().inputs[0]) if one is None else one


def _word(node: Any) -> str:
    """The operation of a node on a weight: the last part of its name, without the number that makes it unique."""
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
