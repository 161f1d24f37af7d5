"""Tables that are looked up: the width of a row can shrink."""

from __future__ import annotations

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.rules.base import (
    Stop,
    layer_name,
    rule,
    shape_out,
    tensor_name,
    why,
)
from sparsebit.sparse.channels.trace import Trace


@rule("embedding")
def embedding(trace: Trace, call: OpCall) -> Labels:
    """A row of the table for every index; rows are found by value, so all of them stay."""
    if call.arguments.get("max_norm") is not None:
        raise Stop(f"{why(call)} renormalises its rows")
    index = trace.labels_of(call.arguments["input"])
    weight, shape = call.arguments["weight"], shape_out(call)
    last = len(shape) - 1
    name = tensor_name(weight)
    if name is None:
        table = trace.labels_of(weight)
        pinned = [trace.pin(layer, [0], f"{why(call)} looks rows up") for layer in trace.simple(table)]
        layers = [Layer((last,), layer.labels) for layer in pinned if layer.dims == (1,)]
        zero = table.zero
    else:
        rows = trace.axis(name, 0, "output", layer_name(call, name), bare=True)
        trace.frozen.append((rows, f"{why(call)} looks rows up"))
        width = trace.axis(name, 1, "output", layer_name(call, name))
        layers, zero = ([Layer((last,), width)] if len(width) > 1 else []), True
    if call.spec.name == "embedding_bag":
        trace.freeze(index, f"{why(call)} uses it as an index")
        return Labels(shape, tuple(layers), zero)
    beside = trace.simple(index)  # a removed index is not an index of a row of zeros
    return Labels(shape, (*beside, *layers), zero and not beside)
