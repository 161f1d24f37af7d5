"""Reductions and all other operators that compute along a dim."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from sparsebit.graph.value import TensorInfo
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.match import to_labels
from sparsebit.sparse.channels.rules.base import Stop, Visit, rule
from sparsebit.sparse.channels.written_norm import is_part_of_norm


@rule("reduce", "sum", "mean", "statistic")
def reduction(at: Visit) -> object:
    """Removed channels must not change the result: sums of zeros do not, a mean is rescaled, other reductions stop."""
    value, kind = at.input, at.call.spec.channels
    dims = _dims(at.arguments.get("dim"), value.rank)
    families: list[Family] = []
    for family in at.trace.simple(value):
        gone = [dim for dim in family.dims if dim in dims]
        if not gone:
            families.append(family)
        elif len(gone) < len(family.dims):
            families.append(at.pin(family, gone))
        elif kind == "sum" and value.zero and not _is_negative(at.arguments.get("p")):
            continue
        elif kind in ("mean", "statistic") and is_part_of_norm(at.trace, at.call, dims):
            at.trace.statistics[at.call.node.name] = at.why
        elif kind == "mean" and value.zero:
            at.trace.averages[at.call.node.name] = family
        else:
            at.pin(family, gone, f"{at.why} works along it")
    families = [family for family in families if family.dims]
    left = [dim for dim in range(value.rank) if dim not in dims]

    def build(info: TensorInfo) -> Labels:
        where = {dim: dim if len(info.shape) == value.rank else left.index(dim) for dim in left}
        return Labels(
            info.shape, [family.moved(where) for family in families], at.call.keeps_zero([value.zero])
        )

    return at.outputs(build)


def _is_negative(order: object) -> bool:
    """Whether a norm has a negative order: the zeros of removed channels would determine it."""
    return isinstance(order, int | float) and order < 0


@rule("along_dim")
def along_a_dim(at: Visit) -> object:
    """Every result depends on all positions along the dim, which therefore keeps its size."""
    names = [name for name in ("dim", "dims", "dimension") if name in at.arguments]
    return _along(at, at.arguments[names[0]] if names else None)


@rule("softmax")
def softmax(at: Visit) -> object:
    """The same, along the second dim or the first where none is given."""
    given = at.arguments.get("dim")
    implied = 0 if at.input.rank in (0, 1, 3) else 1
    return _along(at, implied if given is None else given)


def _along(at: Visit, given: object) -> object:
    value = at.input
    families = at.pinned(value, _dims(given, value.rank), f"{at.why} works along it")
    zero = at.call.keeps_zero([value.zero])
    return at.outputs(lambda info: Labels(info.shape, families, zero))


@rule("cosine_similarity")
def cosine_similarity(at: Visit) -> Labels:
    """Products and squares summed along a dim."""
    both = [at.labels(name) for name in ("x1", "x2")]
    rank = max(one.rank for one in both)
    summed = at.dim(rank)
    vectors = [at.aligned(one, rank) for one in both]
    # the squares of each are summed as well, those of a broadcast one as often as the other is wide
    zero = all(one.zero and one.wide(summed) for one in vectors)
    vectors = [dataclasses.replace(one, zero=zero) for one in vectors]
    families = at.sum_product(vectors, [summed])
    return to_labels(families, [d for d in range(rank) if d != summed], at.shape, zero=False)


@rule("glu")
def glu(at: Visit) -> Labels:
    """The halves gate each other position by position."""
    value = at.input
    halved, families = at.dim(value.rank), list[Family]()
    for family in at.trace.simple(value):
        if halved in family.dims:
            first, second = family.labels.chunk(2, family.dims.index(halved))
            at.trace.sets.join(first, second)
            family = at.trace.simplify(Family(family.dims, first))
        families += [family] if family.dims else []
    return Labels(at.shape, families, value.zero)


def _dims(given: Any, rank: int) -> list[int]:
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return list(range(rank))
    dims = [dim for dim in (given if isinstance(given, (tuple, list, torch.Size)) else [given])]
    if not all(isinstance(dim, int) for dim in dims):
        raise Stop("a dim is computed")
    return [dim % max(rank, 1) for dim in dims]
