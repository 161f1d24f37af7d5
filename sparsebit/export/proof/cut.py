"""Cut an exported model at its quantized tensors, so that every piece starts from quantized values we choose.

In the whole file one value that rounds the other way moves others behind it, and after twenty layers nothing can be
concluded from a difference. Cut, each piece is compared alone, in the kernels the runtime uses for the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparsebit.export.forms.editor import SCALED
from sparsebit.runtime.packages import require

_ENDS = (("DequantizeLinear", "DequantizeLinear"), ("Mul", SCALED))  # the last nodes of a quantized tensor


@dataclass
class CutModel:
    """The model with its cuts: for each tensor what to feed behind the cut and what to read before it."""

    proto: Any
    feeds: dict[str, str] = field(default_factory=dict)  # tensor -> graph input
    reads: dict[str, str] = field(default_factory=dict)  # tensor -> graph output
    as_numbers: set[str] = field(default_factory=set)  # cut behind DequantizeLinear: 8-bit floats


def cut(model: Any, ranks: dict[str, int]) -> CutModel:
    """Cut an ``onnx_ir`` model, which is changed, at every activation in ``ranks``: names and numbers of dimensions."""
    ir = require("onnx_ir")
    graph, found = model.graph, CutModel(None)
    for node in list(graph):
        name, _, kind = node.name.rpartition("/")
        if (node.op_type, kind) not in _ENDS or name not in ranks:
            continue
        as_numbers = kind == SCALED or "FLOAT8" in node.inputs[2].dtype.name
        read = node.outputs[0] if as_numbers else node.inputs[0]
        dtype = ir.DataType.FLOAT if as_numbers else node.inputs[2].dtype
        shape = ir.Shape([f"{name}_{axis}" for axis in range(ranks[name])])
        given = ir.Value(name=f"{read.name}.given", shape=shape, type=ir.TensorType(dtype))
        if as_numbers:
            found.as_numbers.add(name)
            for user, place in list(read.uses()):
                user.replace_input_with(place, given)
        else:
            node.replace_input_with(0, given)
        graph.inputs.append(given)
        if read not in graph.outputs:
            read.shape, read.type = shape, ir.TensorType(dtype)
            graph.outputs.append(read)
        found.feeds[name], found.reads[name] = given.name, read.name
    found.proto = ir.serde.serialize_model(model)
    return found
