"""Element by element: what meets goes together."""

from __future__ import annotations

from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.match import aligned, alive, match, to_labels
from sparsebit.sparse.channels.rules.base import (
    Stop,
    input_of,
    pick,
    rule,
    shape_out,
    tensor_arguments,
    tie_vector,
    why,
)
from sparsebit.sparse.channels.trace import Trace


@rule("elementwise")
def join_elements(trace: Trace, call: OpCall) -> Labels:
    """The rule of every element-wise operator: tie the broadcast labels of all operands."""
    return _join(trace, call, tensor_arguments(trace, call))


@rule("first_operand")
def join_first(trace: Trace, call: OpCall) -> Labels:
    """The rule of element-wise operators whose other tensors decide only how: a dtype, the ends of bins."""
    return _join(trace, call, tensor_arguments(trace, call, *call.spec.activations))


def _join(trace: Trace, call: OpCall, found: list[tuple[Node, Labels]]) -> Labels:
    if not found:
        raise Stop(f"{why(call)} has no tensor operand")
    shape = shape_out(call)
    operands = [aligned(trace, value, len(shape), node) for node, value in found]
    result = operands[0]
    for other in operands[1:]:
        result = match(trace, result, other, why(call))
    layers = alive(trace, result)
    zero = all(call.keeps_zero([one.zero_at(layer) for one in operands]) for layer in layers)
    return to_labels(layers, range(len(shape)), shape, zero)


@rule("prelu")
def prelu(trace: Trace, call: OpCall) -> Labels:
    """One slope, or one a channel."""
    value = input_of(trace, call)
    layers = trace.simple(value)
    if call.shape("weight") != (1,):
        crossed = [layer for layer in layers if 1 in layer.dims]
        for layer in crossed:
            trace.pin(layer, [dim for dim in layer.dims if dim != 1], why(call))
        layers = trace.simple(value)
        tie_vector(trace, call, call.arguments["weight"], pick(layers, 1), "state")
    return Labels(value.shape, layers, value.zero)


@rule("same_size")
def same_size(trace: Trace, call: OpCall) -> Labels:
    """A new tensor in the size of another: it shrinks with it."""
    value = input_of(trace, call)
    return Labels(value.shape, trace.simple(value), call.keeps_zero(()))


@rule("fill")
def fill(trace: Trace, call: OpCall) -> Labels:
    """A constant fill can be made in any size: it takes the labels of what it meets first."""
    return Labels(shape_out(call), zero=call.keeps_zero(()), wild=True)
