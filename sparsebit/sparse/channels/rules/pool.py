"""Pooling and resampling: channels are unchanged, positions are mixed."""

from __future__ import annotations

from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.match import to_labels
from sparsebit.sparse.channels.rules.base import Visit, rule


@rule("per_channel")
def keep_channels(at: Visit) -> object:
    """Batch and channels pass; every later dim keeps its size."""
    _, value = at.tensors(*at.call.spec.activations)[0]
    inner = range(value.rank - (at.call.spec.spatial or max(value.rank - 2, 0)), value.rank)
    kept = at.pinned(value, inner, f"{at.why} works along it")
    zero = at.call.keeps_zero([value.zero])
    # the positions that a maximum also gives are integers, and not zero
    return at.outputs(lambda info: Labels(info.shape, kept, zero and info.dtype.is_floating_point))


@rule("max_unpool")
def max_unpool(at: Visit) -> object:
    """Labels of the values and of their positions are tied."""
    value, index = at.input, at.labels("indices")
    dims = range(value.rank)
    both = at.match(at.aligned(value, value.rank), at.aligned(index, value.rank))
    families = at.pinned(Labels(value.shape, both.families), dims[-at.call.spec.spatial :])
    return at.outputs(lambda info: to_labels(families, dims, info.shape, value.zero))


@rule("grid_sample")
def grid_sample(at: Visit) -> object:
    """The grid decides positions only."""
    at.trace.freeze(at.labels("grid"), f"{at.why} reads positions from it")
    return keep_channels(at)
