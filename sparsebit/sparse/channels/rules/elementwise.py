"""Element by element: what meets goes together."""

from __future__ import annotations

from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.match import alive, match, operand, to_labels
from sparsebit.sparse.channels.rules.base import Stop, rule, shape_out, tensor_arguments, tie_vector, why
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
    rank = len(shape)
    operands = [operand(trace, value, range(rank - len(value.shape), rank), node) for node, value in found]
    result = operands[0]
    for other in operands[1:]:
        result = match(trace, result, other, why(call))
    layers = alive(trace, result)
    zero = all(call.keeps_zero([one.zero_at(layer) for one in operands]) for layer in layers)
    return to_labels(layers, range(rank), shape, zero)


@rule("prelu")
def prelu(trace: Trace, call: OpCall) -> Labels:
    """One slope, or one a channel."""
    value = trace.labels_of(call.arguments["input"])
    layers = trace.simple(value)
    if call.shape("weight") != (1,):
        layers = [
            trace.pin(layer, [d for d in layer.dims if d != 1], why(call)) if 1 in layer.dims else layer
            for layer in layers
        ]
        labels = next((layer.labels for layer in layers if layer.dims == (1,)), None)
        tie_vector(trace, call, call.arguments["weight"], labels, "state")
    return Labels(value.shape, tuple(layers), value.zero)


@rule("same_size")
def same_size(trace: Trace, call: OpCall) -> Labels:
    """A new tensor in the size of another: it shrinks with it."""
    value = trace.labels_of(call.arguments["input"])
    return Labels(value.shape, tuple(trace.simple(value)), call.keeps_zero(()))


@rule("fill")
def fill(trace: Trace, call: OpCall) -> Labels:
    """A constant fill can be made in any size: it takes the labels of what it meets first."""
    return Labels(shape_out(call), zero=call.keeps_zero(()), wild=True)
