"""Operators that only move elements: run them on the labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_aggregate

from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Family, Labels, family_of, reshape_family
from sparsebit.sparse.channels.match import to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, rule


@rule("move")
def move(at: Visit) -> object:
    """The operator moves labels in the same way as data, and can have smaller sizes afterwards."""
    return _move(at, at.input)


@rule("pick")
def pick_positions(at: Visit) -> object:
    """The same, if single positions are selected from a dim."""
    value = at.input
    return _move(at, keep_picked_dims(at, value, [at.dim(value.rank, 0)]))


@rule("reshape")
def reshape(at: Visit) -> object:
    """The same elements in the same order."""
    value, shape = at.input, at.shape
    return _move(at, value, lambda family: [reshape_family(family, value.shape, shape)])


@rule("reshape_as")
def reshape_as(at: Visit) -> Labels:
    """The same elements in the size of another tensor: both can only shrink together."""
    value, other, shape = at.input, at.arguments["other"], at.shape
    families = [reshape_family(family, value.shape, shape) for family in at.trace.simple(value)]
    moved = at.aligned(Labels(shape, families), len(shape))
    tied = at.match(moved, at.aligned(at.trace.labels_of(other), len(shape), other))
    return to_labels(at.alive(tied), range(len(shape)), shape, value.zero)


@rule("expand")
def expand(at: Visit) -> object:
    """Copies made along new dims can be removed one by one: they have no weights, and are not zero."""
    value, shape = at.input, at.shape
    old = (1,) * (len(shape) - value.rank) + value.shape
    copies = [
        Family((dim,), at.trace.sets.fresh(size))
        for dim, size in enumerate(shape)
        if size > 1 and old[dim] == 1
    ]
    value = replace(value, zero=value.zero and not copies)
    return _move(at, value, None, *([one] for one in copies))


def _move(
    at: Visit,
    value: Labels,
    through: Callable[[Family], list[Family]] | None = None,
    *more: list[Family],
) -> object:
    """Move each family through the operator, by default by running it; each result gets its part."""
    through = through or (lambda family: _run(at, value, family))
    results = [*(through(family) for family in at.trace.simple(value)), *more]
    position = itertools.count()

    def build(info: TensorInfo) -> Labels:
        index = next(position)  # families that no longer vary are kept: one channel is all
        return Labels(
            info.shape, [found[index] for found in results] if 0 not in info.shape else (), value.zero
        )

    return at.outputs(build)


def _run(at: Visit, value: Labels, family: Family) -> list[Family]:
    result = run_node(at, at.arguments["input"], family.full(value.shape))
    parts = result if isinstance(result, (tuple, list)) else [result]
    return [family_of(part) for part in parts if isinstance(part, Tensor)]


def run_node(at: Visit, source: object, labels: Tensor) -> object:
    """Call the node's own target with ``labels`` instead of its tensor, and with recorded sizes."""

    def give(item: object) -> object:
        if item is source:
            return labels
        if not isinstance(item, Node):
            return item
        other = at.trace.values.get(item.name)
        if isinstance(other, Labels):
            return torch.zeros((), dtype=torch.int64).expand(other.shape)
        return item.meta.get("value")

    args, kwargs = map_aggregate(at.call.node.args, give), map_aggregate(at.call.node.kwargs, give)  # type: ignore[arg-type]
    function = at.call.module if at.call.module is not None else at.call.node.target
    assert callable(function)
    return function(*args, **kwargs)


def keep_picked_dims(at: Visit, value: Labels, dims: list[int]) -> Labels:
    """If single positions are selected from a dim, families that also vary elsewhere keep the size of that dim."""
    for family in at.trace.simple(value):
        if any(dim not in dims for dim in family.dims):
            at.pin(family, dims)
    return replace(value, families=at.trace.simple(value))


@rule("channel_shuffle")
def channel_shuffle(at: Visit) -> Labels:
    """As a view [groups, n], transposed: the same positions of every group."""
    groups = at.integer("groups")

    def shuffle(labels: Tensor) -> Tensor:
        table = labels.reshape(groups, -1)
        at.pin(Family((0, 1), table), [0])
        return table.t().reshape(-1)

    return _along_channels(at, 1, shuffle)


@rule("pixel_shuffle")
def pixel_shuffle(at: Visit) -> Labels:
    """Channels become positions: those of one new channel are removed together. Or positions become channels."""
    up = "upscale_factor" in at.arguments
    area = at.integer("upscale_factor" if up else "downscale_factor") ** 2

    def spread(labels: Tensor) -> Tensor:
        if not up:
            return labels.repeat_interleave(area)
        at.pin(Family((0, 1), labels.reshape(-1, area)), [1])
        return labels[::area]

    return _along_channels(at, at.input.rank - 3, spread)


@rule("im2col")
def im2col(at: Visit) -> Labels:
    """Every channel becomes as many rows as the kernel has positions."""
    value = at.input
    channel = value.rank - 3
    times = at.shape[channel] // value.shape[channel]
    return _along_channels(at, channel, lambda labels: labels.repeat_interleave(times))


def _along_channels(at: Visit, channel: int, change: Callable[[Tensor], Tensor]) -> Labels:
    """The result of an operator that rearranges channels; every later dim keeps its size."""
    value = at.input
    for family in at.trace.simple(value):
        apart = [dim for dim in family.dims if dim > channel or (channel in family.dims and dim != channel)]
        at.pin(family, apart)
    families = [
        Family(family.dims, change(family.labels)) if family.dims == (channel,) else family
        for family in at.trace.simple(value)
    ]
    return Labels(at.shape, families, value.zero)


@rule("pad")
def pad(at: Visit) -> Labels:
    """Constant padding along channels adds channels without weights, which can be removed like any other."""
    value, amounts = at.input, at.arguments["pad"]
    if isinstance(amounts, int):
        amounts = (amounts,) * 2 * (value.rank - 2)
    if not isinstance(amounts, (tuple, list)):
        raise Stop(f"{at.why}: the width of the padding is computed")
    padded = {value.rank - 1 - i: amounts[2 * i : 2 * i + 2] for i in range(len(amounts) // 2)}
    constant = at.arguments.get("mode") in ("constant", None)
    families = []
    for family in at.trace.simple(value):
        for axis, dim in enumerate(family.dims):
            left, right = padded.get(dim, (0, 0))
            if not isinstance(left, int) or not isinstance(right, int):
                raise Stop(f"{at.why}: the width of the padding is computed")
            if not (left or right):
                continue
            if not constant or left < 0 or right < 0:
                raise Stop(f"{at.why} repeats or cuts channels")
            family = Family(family.dims, _pad_axis(at, family.labels, axis, left, right))
        families.append(family)
    return Labels(at.shape, families, at.call.keeps_zero([value.zero]))


def _pad_axis(at: Visit, labels: Tensor, axis: int, left: int, right: int) -> Tensor:
    parts = [labels]
    for amount, front in ((left, True), (right, False)):
        if amount:
            shape = [*labels.shape]
            shape[axis] = amount
            new = at.trace.sets.fresh(torch.Size(shape).numel()).reshape(shape)
            parts = [new, *parts] if front else [*parts, new]
    return torch.cat(parts, axis)
