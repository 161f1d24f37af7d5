"""Reductions and everything else that works along a dim."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Labels, Layer
from sparsebit.sparse.channels.match import aligned, sum_product, to_labels
from sparsebit.sparse.channels.rules.base import Stop, dim_of, input_of, outputs, rule, shape_out, why
from sparsebit.sparse.channels.trace import Trace
from sparsebit.sparse.channels.written_norm import is_part_of_norm


@rule("reduce", "sum", "mean", "statistic")
def reduction(trace: Trace, call: OpCall) -> object:
    """Removed channels must not change the result: sums of zeros are free, a mean is divided anew, others stop."""
    value, kind = input_of(trace, call), call.spec.channels
    dims = _dims(call.arguments.get("dim"), value.rank)
    layers: list[Layer] = []
    for layer in trace.simple(value):
        gone = [dim for dim in layer.dims if dim in dims]
        if not gone:
            layers.append(layer)
        elif len(gone) < len(layer.dims):
            layers.append(trace.pin(layer, gone, why(call)))
        elif kind == "sum" and value.zero and not _is_negative(call.arguments.get("p")):
            continue
        elif kind in ("mean", "statistic") and is_part_of_norm(trace, call, dims):
            trace.statistics[call.node.name] = why(call)
        elif kind == "mean" and value.zero:
            trace.averages[call.node.name] = layer
        else:
            trace.pin(layer, gone, f"{why(call)} works along it")
    layers = [layer for layer in layers if layer.dims]
    left = [dim for dim in range(value.rank) if dim not in dims]

    def build(info: TensorInfo) -> Labels:
        where = {dim: dim if len(info.shape) == value.rank else left.index(dim) for dim in left}
        return Labels(info.shape, [layer.moved(where) for layer in layers], call.keeps_zero([value.zero]))

    return outputs(call, build)


def _is_negative(order: object) -> bool:
    """Whether a norm is of a negative order: the zeros of removed channels would decide it."""
    return isinstance(order, int | float) and order < 0


@rule("along_dim")
def along_a_dim(trace: Trace, call: OpCall) -> object:
    """Every result depends on all positions along the dim, which therefore keeps its size."""
    names = [name for name in ("dim", "dims", "dimension") if name in call.arguments]
    return _along(trace, call, call.arguments[names[0]] if names else None)


@rule("softmax")
def softmax(trace: Trace, call: OpCall) -> object:
    """The same, along the second dim or the first where none is given."""
    given = call.arguments.get("dim")
    implied = 0 if input_of(trace, call).rank in (0, 1, 3) else 1
    return _along(trace, call, implied if given is None else given)


def _along(trace: Trace, call: OpCall, given: object) -> object:
    value = input_of(trace, call)
    layers = trace.pinned(value, _dims(given, value.rank), f"{why(call)} works along it")
    zero = call.keeps_zero([value.zero])
    return outputs(call, lambda info: Labels(info.shape, layers, zero))


@rule("cosine_similarity")
def cosine_similarity(trace: Trace, call: OpCall) -> Labels:
    """Products and squares summed along a dim."""
    both = [trace.labels_of(call.arguments[name]) for name in ("x1", "x2")]
    rank = max(one.rank for one in both)
    at = dim_of(call, rank)
    vectors = [aligned(trace, one, rank) for one in both]
    # the squares of each are summed as well, those of a broadcast one as often as the other is wide
    zero = all(one.zero and one.wide(at) for one in vectors)
    vectors = [dataclasses.replace(one, zero=zero) for one in vectors]
    layers = sum_product(trace, vectors, [at], why(call))
    return to_labels(layers, [d for d in range(rank) if d != at], shape_out(call), zero=False)


@rule("glu")
def glu(trace: Trace, call: OpCall) -> Labels:
    """The halves gate each other position by position."""
    value = input_of(trace, call)
    at, layers = dim_of(call, value.rank), []
    for layer in trace.simple(value):
        if at in layer.dims:
            first, second = layer.labels.chunk(2, layer.dims.index(at))
            trace.sets.join(first, second)
            layer = trace.simplify(Layer(layer.dims, first))
        layers += [layer] if layer.dims else []
    return Labels(shape_out(call), layers, value.zero)


def _dims(given: Any, rank: int) -> list[int]:
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return list(range(rank))
    dims = [dim for dim in (given if isinstance(given, (tuple, list, torch.Size)) else [given])]
    if not all(isinstance(dim, int) for dim in dims):
        raise Stop("a dim is computed")
    return [dim % max(rank, 1) for dim in dims]
