"""Pooling and resampling: channels stay what they are, positions are mixed."""

from __future__ import annotations

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.match import match, operand, to_labels
from sparsebit.sparse.channels.rules.base import outputs, rule, tensor_arguments, why
from sparsebit.sparse.channels.trace import Trace


@rule("per_channel")
def keep_channels(trace: Trace, call: OpCall) -> object:
    """Batch and channels pass; whatever lies behind them keeps its size."""
    _, value = tensor_arguments(trace, call, *call.spec.activations)[0]
    rank = len(value.shape)
    inner = range(rank - (call.spec.spatial or max(rank - 2, 0)), rank)
    layers = [trace.pin(layer, inner, f"{why(call)} works along it") for layer in trace.simple(value)]
    kept = [layer for layer in layers if layer.dims]
    zero = call.keeps_zero([value.zero])
    # the positions that a maximum also gives are integers, and not zero
    return outputs(call, lambda info: Labels(info.shape, tuple(kept), zero and info.dtype.is_floating_point))


@rule("max_unpool")
def max_unpool(trace: Trace, call: OpCall) -> object:
    """Values and the positions they go to belong together."""
    value, index = trace.labels_of(call.arguments["input"]), trace.labels_of(call.arguments["indices"])
    rank = len(value.shape)
    both = match(trace, operand(trace, value, range(rank)), operand(trace, index, range(rank)), why(call))
    inner = range(rank - call.spec.spatial, rank)
    layers = [trace.pin(trace.simplify(layer), inner, why(call)) for layer in both.layers]
    return outputs(
        call, lambda info: to_labels([x for x in layers if x.dims], range(rank), info.shape, value.zero)
    )


@rule("grid_sample")
def grid_sample(trace: Trace, call: OpCall) -> object:
    """The grid decides positions only."""
    grid = trace.labels_of(call.arguments["grid"])
    trace.freeze(grid, f"{why(call)} reads positions from it")
    return keep_channels(trace, call)
