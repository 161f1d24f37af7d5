"""Keep every tensor rectangular: the constraints between dims, solved to a fixed point."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sparsebit.sparse.channels.labels import Family
from sparsebit.sparse.channels.trace import Blocks, Trace, distinct_families, labels_in


def solve(trace: Trace) -> None:
    """Tie labels until every possible removal leaves all tensors rectangular; then fix the classes."""
    crossed = [
        (name, family)
        for name, value in trace.values.items()
        for labels in labels_in(value)
        for family in labels.families
        if len(family.dims) > 1
    ]
    while True:
        changed = False
        for name, family in crossed:
            family = trace.simplify(family)
            if len(family.dims) > 1:
                widest = max(family.dims, key=lambda dim: family.labels.shape[family.dims.index(dim)])
                others = [dim for dim in family.dims if dim != widest]
                trace.pin(family, others, f"{name} must stay rectangular")
                changed = True
        if not changed and not _tie_uneven_blocks(trace):
            break
    _freeze_whole_tensors(trace)
    trace.roots = trace.sets.roots()
    _freeze_lone_axes(trace)
    _freeze_blocks(trace)


def live_blocks(trace: Trace) -> list[tuple[Tensor, Tensor]]:
    """The balance that must still be kept: classes [n], each once, and the block [n] of each."""
    found = []
    for constraint in trace.blocks:
        classes = trace.sets.find(constraint.labels)
        if not _is_even(classes, constraint.block):
            unique, first = _unique(classes)
            found.append((unique, constraint.block[first]))
    return found


def _tie_uneven_blocks(trace: Trace) -> bool:
    """Tie the positions of blocks whose counts could not be kept equal by choosing in each block separately."""
    real: list[tuple[Blocks, Tensor, Tensor]] = []
    for constraint in trace.blocks:
        classes = trace.sets.find(constraint.labels)
        if _is_even(classes, constraint.block):
            continue
        unique, first = _unique(classes)
        pairs = torch.unique(classes * (int(constraint.block.max()) + 1) + constraint.block)
        sizes = torch.unique(torch.unique(classes, return_counts=True)[1])
        if len(pairs) != len(unique) or len(sizes) > 1:  # one class in several blocks, or of uneven size
            return _tie(trace, constraint)
        real.append((constraint, unique, constraint.block[first]))
    for i, (mine, classes, block) in enumerate(real):
        for other, others, other_block in real[:i]:
            shared = torch.isin(classes, others)
            if not bool(shared.any()):
                continue
            same = len(classes) == len(others) and bool(shared.all())
            if not same or not (_nested(block, other_block) or _nested(other_block, block)):
                return _tie(trace, mine) or _tie(trace, other)
    return False


def _tie(trace: Trace, constraint: Blocks) -> bool:
    before = trace.sets.find(constraint.labels)
    table = constraint.labels.reshape(int(constraint.block.max()) + 1, -1)
    trace.pin(Family((0, 1), table), [0], constraint.reason)
    return not torch.equal(before, trace.sets.find(constraint.labels))


def _is_even(classes: Tensor, block: Tensor) -> bool:
    """Whether all blocks hold the same classes equally often, so that the counts are always equal."""
    table = classes.reshape(int(block.max()) + 1, -1).sort(1).values
    return bool((table == table[:1]).all())


def _nested(fine: Tensor, coarse: Tensor) -> bool:
    """Whether each fine block lies in one coarse block, and every coarse block holds as many of them."""
    pairs = torch.unique(fine * (int(coarse.max()) + 1) + coarse)
    if len(pairs) != len(torch.unique(fine)):
        return False
    counts = torch.bincount(pairs % (int(coarse.max()) + 1))
    return bool((counts == counts[0]).all())


def _unique(classes: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct values in order, and where each occurs first."""
    unique, inverse = torch.unique(classes, return_inverse=True)
    first = torch.full((len(unique),), len(classes)).scatter_reduce(
        0, inverse, torch.arange(len(classes)), "amin"
    )
    return unique, first


def _freeze_whole_tensors(trace: Trace) -> None:
    """A class that covers a complete tensor cannot be removed: the tensor would be empty."""
    for family, names in distinct_families(trace.values).values():
        simple = trace.simplify(family)
        if not simple.dims:
            trace.frozen.append((simple.labels.reshape(-1), f"all of {names[0]} depends on it"))


def _freeze_lone_axes(trace: Trace) -> None:
    """An axis of a bare parameter that nothing else depends on (kernel sizes, learned tokens) keeps its size."""
    if not any(axis.bare for axis in trace.axes.values()):
        return
    roots = trace.roots.numpy()  # there are many short arrays, and torch takes microseconds for each
    classes = [roots[axis.labels.numpy()] for axis in trace.axes.values()]
    last = np.full(len(roots), -1)  # the axis that a class was last seen on
    shared = np.zeros(len(roots), dtype=bool)
    for number, found in enumerate(classes):
        before = last[found]
        shared[found] |= (before >= 0) & (before != number)
        last[found] = number
    for axis, found in zip(trace.axes.values(), classes, strict=True):
        if axis.bare:
            reason = f"axis {axis.axis} of {axis.tensor} is read by no layer"
            trace.frozen.append((torch.from_numpy(found[~shared[found]]), reason))


def _freeze_blocks(trace: Trace) -> None:
    """One frozen channel freezes its balanced blocks: the others could not lose as many."""
    changed = True
    while changed:
        changed, dead, reason_of = False, frozen_classes(trace), find_reasons(trace)
        for classes, _ in live_blocks(trace):
            hit = dead[classes]
            if bool(hit.any()) and not bool(hit.all()):
                trace.frozen.append((classes, str(reason_of(classes))))
                changed = True


def frozen_classes(trace: Trace) -> Tensor:
    """bool [labels]: True at the class of anything frozen."""
    flags = torch.zeros(trace.sets.size, dtype=torch.bool)
    for labels, _ in trace.frozen:
        flags[trace.roots[labels]] = True
    return flags


def find_reasons(trace: Trace) -> Callable[[Tensor], str | None]:
    """Why some classes are frozen: the first reason of the first of them that is.

    The reason for pinning a class says more than that a complete tensor depends on it.
    """
    reason_of = torch.full((trace.sets.size,), -1)
    for number in reversed(range(len(trace.frozen))):
        reason_of[trace.roots[trace.frozen[number][0]]] = number
    notes: dict[int, str] = {}
    for label, note in trace.notes:
        notes.setdefault(int(trace.roots[label]), note)

    def find(classes: Tensor) -> str | None:
        found = (reason_of[classes] >= 0).nonzero()
        if not len(found):
            return None
        root = int(classes[found[0]])
        reason = trace.frozen[int(reason_of[root])][1]
        return notes.get(root, reason) if reason.startswith("all of ") else reason

    return find
