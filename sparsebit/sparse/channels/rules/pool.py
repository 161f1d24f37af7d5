"""Pooling and resampling: channels stay what they are, positions are mixed."""

from __future__ import annotations

from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.match import aligned, match, to_labels
from sparsebit.sparse.channels.rules.base import input_of, outputs, rule, tensor_arguments, why
from sparsebit.sparse.channels.trace import Trace


@rule("per_channel")
def keep_channels(trace: Trace, call: OpCall) -> object:
    """Batch and channels pass; whatever lies behind them keeps its size."""
    _, value = tensor_arguments(trace, call, *call.spec.activations)[0]
    inner = range(value.rank - (call.spec.spatial or max(value.rank - 2, 0)), value.rank)
    kept = trace.pinned(value, inner, f"{why(call)} works along it")
    zero = call.keeps_zero([value.zero])
    # the positions that a maximum also gives are integers, and not zero
    return outputs(call, lambda info: Labels(info.shape, kept, zero and info.dtype.is_floating_point))


@rule("max_unpool")
def max_unpool(trace: Trace, call: OpCall) -> object:
    """Values and the positions they go to belong together."""
    value, index = input_of(trace, call), trace.labels_of(call.arguments["indices"])
    dims = range(value.rank)
    both = match(trace, aligned(trace, value, value.rank), aligned(trace, index, value.rank), why(call))
    layers = trace.pinned(Labels(value.shape, both.layers), dims[-call.spec.spatial :], why(call))
    return outputs(call, lambda info: to_labels(layers, dims, info.shape, value.zero))


@rule("grid_sample")
def grid_sample(trace: Trace, call: OpCall) -> object:
    """The grid decides positions only."""
    trace.freeze(trace.labels_of(call.arguments["grid"]), f"{why(call)} reads positions from it")
    return keep_channels(trace, call)
