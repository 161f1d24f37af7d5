"""Channel groups of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.channels.group import ChannelGroups, Group, Slice
from sparsebit.sparse.channels.solve import frozen_classes, live_blocks, reasons, solve
from sparsebit.sparse.channels.trace import Trace, distinct_layers
from sparsebit.sparse.channels.walk import trace_labels


def find_groups(gm: GraphModule, *, keep: Sequence[str] = (), whole_heads: bool = True) -> ChannelGroups:
    """What can be removed from a captured model, and what has to go with it.

    Every tensor gets labels that say which units its elements belong to; operators tie labels together, and
    the classes that come out are the units. Linear in the size of the graph; the weights are not touched.

    Args:
        gm: a captured model with recorded shapes.
        keep: fnmatch patterns on layer names; the outputs of these layers stay whole.
        whole_heads: remove attention heads as a whole; False removes the same dims of every head instead.
    """
    trace = trace_labels(gm, whole_heads=whole_heads)
    for axis in list(trace.axes.values()):
        pattern = next((p for p in keep if fnmatchcase(axis.layer, p)), None)
        if axis.role == "output" and pattern is not None:
            trace.frozen.append((axis.labels, f"kept by the pattern {pattern!r}"))
    solve(trace)
    return ChannelGroups(_group(trace), graph_digest(gm), trace)


def _group(trace: Trace) -> tuple[Group, ...]:
    roots = trace.roots
    frozen, why = frozen_classes(trace), reasons(trace)
    signature, made = _signatures(trace, frozen)
    blocks = torch.full((trace.sets.size,), -1)
    for classes, block in live_blocks(trace):
        signature[classes] = signature[classes].min()  # to be chosen together
        finer = bool((blocks[classes] < 0).all()) or int(block.max()) > int(blocks[classes].max())
        blocks[classes] = block if finer else blocks[classes]
    keys: dict[int, int] = {}
    group_of = torch.full((trace.sets.size,), -1)
    for axis in trace.axes.values():  # in the order of the graph
        if axis.role != "output":
            continue
        classes = roots[axis.labels]
        for key in dict.fromkeys(signature[classes[made[classes]]].tolist()):
            keys.setdefault(key, len(keys))
    owners = torch.nonzero(made).reshape(-1)
    if len(owners):
        values, inverse = torch.unique(signature[owners], return_inverse=True)
        numbers = torch.tensor([keys[value] for value in values.tolist()])
        group_of[owners] = numbers[inverse]
    unit_of = _number_units(trace, group_of, len(keys))
    return _build(trace, group_of, unit_of, len(keys), blocks, frozen, why)


def _signatures(trace: Trace, frozen: Tensor) -> tuple[Tensor, Tensor]:
    """int64 [labels] equal for classes that live in the same places, and which classes any layer makes."""
    generator = np.random.default_rng(0)
    signature = torch.zeros(trace.sets.size, dtype=torch.int64)
    made = torch.zeros(trace.sets.size, dtype=torch.bool)
    used = torch.zeros(trace.sets.size, dtype=torch.bool)

    arrays = {id(axis.labels): axis.labels for axis in trace.axes.values()}
    arrays |= {key: layer.labels.reshape(-1) for key, (layer, _) in distinct_layers(trace.values).items()}
    classes = {key: _distinct(trace.roots[labels]) for key, labels in arrays.items()}
    for found in classes.values():
        signature[found] += int(generator.integers(-(2**62), 2**62))
    for axis in trace.axes.values():
        if axis.role == "output":
            made[classes[id(axis.labels)]] = True
        if not axis.bare:
            used[classes[id(axis.labels)]] = True
    made &= used | ~frozen  # the rows of a position embedding are nobody's channels
    signature[frozen] += int(generator.integers(-(2**62), 2**62))
    return signature, made


def _number_units(trace: Trace, group_of: Tensor, groups: int) -> Tensor:
    """The place of every class within its group, in the order in which the layers list them."""
    listed = [trace.roots[axis.labels] for axis in trace.axes.values() if axis.role == "output"]
    order = torch.cat(listed) if listed else torch.empty(0, dtype=torch.int64)
    unique, inverse = torch.unique(order, return_inverse=True)
    first = torch.full((len(unique),), len(order)).scatter_reduce(
        0, inverse, torch.arange(len(order)), "amin"
    )
    unique = unique[first.argsort()]
    unique = unique[group_of[unique] >= 0]
    sorted_by_group = group_of[unique].argsort(stable=True)
    ranks = torch.empty_like(unique)
    counts = torch.bincount(group_of[unique], minlength=groups)
    starts = counts.cumsum(0) - counts
    ranks[sorted_by_group] = torch.arange(len(unique)) - starts[group_of[unique][sorted_by_group]]
    unit_of = torch.full((trace.sets.size,), -1)
    unit_of[unique] = ranks
    return unit_of


def _build(
    trace: Trace,
    group_of: Tensor,
    unit_of: Tensor,
    count: int,
    blocks: Tensor,
    frozen: Tensor,
    why: dict[int, str],
) -> tuple[Group, ...]:
    slices: list[list[Slice]] = [[] for _ in range(count)]
    producers: list[dict[str, None]] = [{} for _ in range(count)]
    nodes: list[dict[str, None]] = [{} for _ in range(count)]
    parts: dict[int, list[tuple[int, Tensor, Tensor]]] = {}  # arrays of labels are shared by many tensors
    for axis in trace.axes.values():
        if id(axis.labels) not in parts:
            classes = trace.roots[axis.labels]
            owner = group_of[classes]
            found = [(number, torch.nonzero(owner == number).reshape(-1)) for number in _values(owner)]
            parts[id(axis.labels)] = [
                (number, at, unit_of[classes[at]]) for number, at in found if number >= 0
            ]
        for number, index, unit in parts[id(axis.labels)]:
            slices[number].append(Slice(axis.tensor, axis.axis, index, unit, axis.role, axis.rows))
            if axis.role == "output":
                producers[number][axis.layer] = None
    for layer, names in distinct_layers(trace.values).values():
        for number in _values(group_of[trace.roots[layer.labels.reshape(-1)]]):
            if number >= 0:
                nodes[number].update(dict.fromkeys(names))
    classes_of = _classes(group_of, unit_of, count)
    result, used = [], dict[str, int]()
    for number, classes in enumerate(classes_of):
        first = next(iter(producers[number]))
        used[first] = used.get(first, 0) + 1
        name = first if used[first] == 1 else f"{first}#{used[first]}"
        reason = next((why[root] for root in classes.tolist() if root in why), None)
        if reason is None and len(classes) == 1:
            reason = "it is a single unit"
        block = blocks[classes]
        result.append(
            Group(
                name=name,
                units=len(classes),
                blocks=torch.unique(block, return_inverse=True)[1] if bool((block >= 0).all()) else None,
                slices=tuple(slices[number]),
                producers=tuple(producers[number]),
                nodes=tuple(nodes[number]),
                frozen=reason,
            )
        )
    return tuple(result)


def _values(numbers: Tensor) -> list[int]:
    """The different numbers; mostly there is one."""
    first = numbers[:1].tolist()
    return first if bool((numbers == numbers[:1]).all()) else torch.unique(numbers).tolist()


def _distinct(classes: Tensor) -> Tensor:
    """Every class once; mostly they ascend."""
    if bool((classes[1:] > classes[:-1]).all()):
        return classes
    unique: Tensor = torch.unique(classes)
    return unique


def _classes(group_of: Tensor, unit_of: Tensor, count: int) -> list[Tensor]:
    """The classes of every group, in the order of its units."""
    owned = torch.nonzero(unit_of >= 0).reshape(-1)
    order = owned[
        (group_of[owned] * (int(unit_of.max()) + 1 if len(owned) else 1) + unit_of[owned]).argsort()
    ]
    sizes = torch.bincount(group_of[owned], minlength=count).tolist()
    return list(order.split(sizes))
