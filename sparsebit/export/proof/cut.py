"""Cut an exported model at its quantized tensors, so that every piece starts from codes we choose.

Left whole, one code that rounds the other way moves others behind it, and after twenty layers nothing can be concluded
from a difference. Cut, each piece is compared alone, in the kernels the runtime uses for the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparsebit.export.forms.lower import SCALED
from sparsebit.runtime.packages import require

GIVEN = ".given"
_ENDS = (("DequantizeLinear", "DequantizeLinear"), ("Mul", SCALED))  # the last nodes of a quantized tensor
_FLOAT8 = (17, 18, 19, 20)  # numbers of the 8-bit floats in ONNX's enumeration


@dataclass
class CutModel:
    """The model with its cuts: for each tensor what to feed behind the cut and what to read before it."""

    proto: Any
    feeds: dict[str, str] = field(default_factory=dict)  # tensor -> graph input
    reads: dict[str, str] = field(default_factory=dict)  # tensor -> graph output
    as_numbers: set[str] = field(default_factory=set)  # cut behind DequantizeLinear: 8-bit floats


def cut(proto: Any, ranks: dict[str, int]) -> CutModel:
    """Cut at every activation in ``ranks``; those are the names of the tensors and their numbers of dimensions."""
    onnx = require("onnx")
    whole = type(proto)()
    whole.CopyFrom(proto)
    graph, found = whole.graph, CutModel(whole)
    producer = {name: node for node in graph.node for name in node.output}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in list(graph.node):
        name, _, kind = node.name.rpartition("/")
        if (node.op_type, kind) not in _ENDS or name not in ranks:
            continue
        if node.input[0] not in producer:
            continue  # a weight
        element = types[node.input[2]] if kind != SCALED else _FLOAT8[0]
        dims = [f"{name}_{axis}" for axis in range(ranks[name])]
        if element in _FLOAT8:
            found.as_numbers.add(name)
            given, read, element = f"{node.output[0]}{GIVEN}", node.output[0], onnx.TensorProto.FLOAT
            _redirect(graph, read, given)
        else:
            given, read = f"{node.input[0]}{GIVEN}", node.input[0]
            _redirect(graph, read, given, only=(node,))
        graph.input.append(onnx.helper.make_tensor_value_info(given, element, dims))
        if read not in {value.name for value in graph.output}:
            graph.output.append(onnx.helper.make_tensor_value_info(read, element, dims))
        found.feeds[name], found.reads[name] = given, read
    return found


def _redirect(graph: Any, old: str, new: str, only: tuple[Any, ...] | None = None) -> None:
    for node in only if only is not None else graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
