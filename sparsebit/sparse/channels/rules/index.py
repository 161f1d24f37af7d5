"""Selecting, looking up and joining: indexing, tables, gathering, concatenation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.fx import Node

from sparsebit.sparse.channels.labels import Family, Labels, family_of
from sparsebit.sparse.channels.match import Operand, to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, pick, rule, tensor_name
from sparsebit.sparse.channels.rules.move import keep_picked_dims, run_node


@rule("getitem")
def getitem(at: Visit) -> object:
    """One of several results, or an index into a tensor."""
    source, index = at.arguments["input"], at.arguments["index"]
    assert isinstance(source, Node)
    held = at.trace.values.get(source.name)
    if not isinstance(held, Labels):
        if isinstance(held, (tuple, list, dict)) and not isinstance(index, Node):
            return held[index]  # type: ignore[call-overload]
        raise Stop(at.why)
    picked, looked_up = [], []
    for _, dim, item in indexed_dims(index, held.rank):
        tensor = at.trace.values.get(item.name) if isinstance(item, Node) else None
        if isinstance(item, Node) and isinstance(tensor, Labels) and item.meta["value"].dtype == torch.bool:
            raise Stop(f"{at.why} selects by a mask")
        if isinstance(item, bool):
            raise Stop(at.why)
        if isinstance(tensor, Labels):
            at.trace.freeze(tensor, f"{at.why} uses it as an index")
        if isinstance(tensor, Labels) or isinstance(item, (list, tuple)):
            looked_up.append(dim)
        elif isinstance(item, (int, Node)):
            picked.append(dim)
    for family in at.trace.simple(held):
        at.pin(family, looked_up, f"{at.why} searches positions by value")
    value = keep_picked_dims(at, held, picked)
    for _, dim, item in indexed_dims(index, held.rank):
        if isinstance(item, slice) and item.step not in (None, 1):
            for family in at.trace.simple(value):
                _keep_step(at, family, dim, item)
    shape = at.shape
    if 0 in shape:
        return Labels(shape, [] if picked else _beside_empty(at, value, shape), value.zero)
    results = [run_node(at, source, family.full(value.shape)) for family in at.trace.simple(value)]
    families = [family_of(result) for result in results if isinstance(result, Tensor)]
    return Labels(shape, families, value.zero)


def _beside_empty(at: Visit, value: Labels, shape: tuple[int, ...]) -> list[Family]:
    """The families along the other dims of an empty slice: the heads, if no dim of a head remains."""
    if value.rank != len(shape):
        return []
    same = {dim for dim in range(value.rank) if shape[dim] == value.shape[dim]}
    crossing = [family for family in at.trace.simple(value) if same.intersection(family.dims)]
    pinned = [at.pin(family, {*family.dims} - same) for family in crossing]
    return [family for family in pinned if family.dims]


def indexed_dims(index: object, rank: int) -> Iterator[tuple[int, int, object]]:
    """Every part of an index that consumes a dim: its position in the index, the dim, and the part."""
    items = list(index) if isinstance(index, tuple) else [index]
    spent, dim = sum(item is not None and item is not Ellipsis for item in items), 0
    for place, item in enumerate(items):
        if item is Ellipsis:
            dim += rank - spent
        elif item is not None:
            yield place, dim, item
            dim += 1


def _keep_step(at: Visit, family: Family, dim: int, item: slice) -> None:
    """``x[:, 1::2]`` stays correct as long as complete steps are removed: positions 0 and 1, 2 and 3, ..."""
    if dim not in family.dims:
        return
    family = at.pin(family, [other for other in family.dims if other != dim])
    step, start = item.step, item.start or 0
    known = item.stop is None and isinstance(step, int) and isinstance(start, int)
    if family.dims and known and len(family.labels) % step == 0 and 0 <= start < step:
        at.pin(Family((0, 1), family.labels.reshape(-1, step)), [1])
    else:
        at.pin(family, [dim], f"{at.why} selects single positions")


@rule("embedding")
def embedding(at: Visit) -> Labels:
    """A row of the table for every index; rows are looked up by value, so all of them stay."""
    if at.arguments.get("max_norm") is not None:
        raise Stop(f"{at.why} renormalises its rows")
    index, weight, shape = at.input, at.arguments["weight"], at.shape
    name, zero = tensor_name(weight), True
    if name is None:
        table = at.trace.labels_of(weight)
        labels, zero = pick(at.pinned(table, [0], f"{at.why} looks rows up"), 1), table.zero
    else:
        rows = at.trace.axis(name, 0, "output", at.layer_name(name), bare=True)
        at.trace.frozen.append((rows, f"{at.why} looks rows up"))
        labels = at.trace.axis(name, 1, "output", at.layer_name(name))
    families = [] if labels is None or len(labels) == 1 else [Family((len(shape) - 1,), labels)]
    if "offsets" in at.arguments:  # rows are summed
        at.trace.freeze(index, f"{at.why} uses it as an index")
        return Labels(shape, families, zero)
    beside = at.trace.simple(index)  # a removed index does not mean a row of zeros
    return Labels(shape, [*beside, *families], zero and not beside)


@rule("index_select")
def index_select(at: Visit) -> Labels:
    """Positions along one dim are selected by value, so it keeps its size."""
    looked_up, _ = _looked_up(at)
    at.trace.freeze(at.labels("index"), f"{at.why} uses it as an index")
    shape = at.shape
    return to_labels(looked_up.families, range(len(shape)), shape, looked_up.zero)


@rule("look_up")
def look_up(at: Visit) -> Labels:
    """The same with an index of the result's shape, which belongs to the result along the other dims."""
    looked_up, dim = _looked_up(at)
    shape = at.shape
    looked_up.extents.pop(dim, None)
    index = at.aligned(at.labels("index"), len(shape))
    tied = at.match(looked_up, index)
    return to_labels(tied.families, range(len(shape)), shape, looked_up.zero)


def _looked_up(at: Visit) -> tuple[Operand, int]:
    """The input with the dim of the index kept as it is, and that dim."""
    value = at.input
    dim = at.dim(value.rank)
    families = at.pinned(value, [dim], f"{at.why} searches positions by value")
    return at.aligned(Labels(value.shape, families, value.zero), value.rank), dim


@rule("cat")
def cat(at: Visit) -> Labels:
    """Labels are concatenated along the dim; along the others, labels of the parts are tied."""
    return _cat(at, at.dim(len(at.shape), 0))


@rule("vstack")
def vstack(at: Visit) -> Labels:
    """Along the first dim."""
    return _cat(at, 0)


@rule("hstack")
def hstack(at: Visit) -> Labels:
    """Along the second dim, or the only one."""
    return _cat(at, min(1, len(at.shape) - 1))


@rule("stack")
def stack(at: Visit) -> Labels:
    """A new dim, which keeps its size; labels of the parts are tied along all others."""
    found, shape = at.tensors("tensors"), at.shape
    new = at.dim(len(shape), 0)
    letters = [dim for dim in range(len(shape)) if dim != new]
    total = at.operand(found[0][1], letters, found[0][0])
    for node, value in found[1:]:
        total = at.match(total, at.operand(value, letters, node))
    zero = all(value.zero for _, value in found)
    return to_labels(at.alive(total), range(len(shape)), shape, zero)


def _cat(at: Visit, main: int) -> Labels:
    """Tie the families that all parts have, then concatenate those along the dim ``main``."""
    found = [(node, value) for node, value in at.tensors("tensors") if value.shape != (0,)]
    shape, trace = at.shape, at.trace
    rank = len(shape)
    if any(value.rank != rank for _, value in found):
        raise Stop(at.why)
    across: Operand | None = None
    ends: list[Family] = []
    crossing = {
        dim
        for _, value in found
        for family in trace.simple(value)
        if main in family.dims
        for dim in family.dims
    } - {main}
    for _, value in found:
        if value.wild:
            ends.append(Family((main,), trace.sets.fresh(value.shape[main])))
            continue
        own, beside = _end(at, value, main, crossing)
        ends.append(own)
        part = at.aligned(Labels(value.shape, beside), rank)
        part.extents.pop(main, None)
        across = part if across is None else at.match(across, part)
    families = at.alive(across) if across is not None else []
    for end, (node, value) in zip(ends, found, strict=True):
        if value.wild:  # as large as the others along their dims, and free along its own
            trace.adopt(node, (*((end,) if value.shape[main] > 1 else ()), *families))
    dims = tuple(sorted({main}.union(*(end.dims for end in ends))))
    parts = []
    for end, (_, value) in zip(ends, found, strict=True):
        thin = tuple(size if dim in dims else 1 for dim, size in enumerate(value.shape))
        parts.append(end.full(thin).reshape([thin[dim] for dim in dims]))
    families.append(Family(dims, torch.cat(parts, dims.index(main))))
    return to_labels(families, range(rank), shape, all(value.zero for _, value in found))


def _end(at: Visit, value: Labels, main: int, crossing: set[int]) -> tuple[Family, list[Family]]:
    """The family along the dim of concatenation (a fixed one if there is none), and the others.

    Where the other parts have channels that vary along ``main`` and along ``crossing`` (dims of a head, for every
    head), channels that vary only along ``crossing`` are treated as the same all along ``main``.
    """
    families = at.trace.simple(value)
    along = [family for family in families if main in family.dims]
    for family in along[1:]:
        at.pin(family, family.dims)
    beside = [family for family in families if main not in family.dims]
    if along:
        return along[0], beside
    wide = next((family for family in beside if set(family.dims) <= crossing), None)
    if wide is not None:
        return wide, [family for family in beside if family is not wide]
    fixed = Family((main,), at.trace.sets.fresh(value.shape[main]))
    at.trace.frozen.append((fixed.labels, f"{at.why} joins a tensor whose size is fixed"))
    return fixed, beside
