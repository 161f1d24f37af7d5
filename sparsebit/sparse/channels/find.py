"""Channel groups of a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.graph.cpu_by_default import cpu_by_default
from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.channels.group import ChannelGroups, Group, Slice
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.rules.base import why
from sparsebit.sparse.channels.solve import find_reasons, frozen_classes, live_blocks, solve
from sparsebit.sparse.channels.trace import Trace, distinct_families, labels_in
from sparsebit.sparse.channels.walk import trace_labels

Array = np.ndarray
Classes = dict[int, np.ndarray]  # of every array of labels, by its id


@cpu_by_default
def find_groups(
    gm: GraphModule,
    *,
    keep: Sequence[str] = (),
    unchanged: Sequence[str] = (),
    whole_heads: bool = True,
    prune_outputs: Callable[[str], bool] = lambda layer: False,
) -> ChannelGroups:
    """Which channels can be removed from a captured model, and what must be removed with each.

    Every tensor gets labels that say which channels its elements belong to; operators tie labels together, and the
    resulting classes are the channels. The time is linear in the size of the graph; weights are not read.

    Args:
        gm: a captured model with recorded shapes.
        keep: fnmatch patterns on layer names; these layers keep all their output channels.
        unchanged: fnmatch patterns on layer names; these layers keep all their input channels as well.
        whole_heads: remove complete attention heads; False removes the same dims of every head instead.
        prune_outputs: a function from a layer's name to whether it may lose channels that are outputs of the model.
    """
    trace = trace_labels(gm, whole_heads=whole_heads)
    _freeze_outputs(trace, prune_outputs)
    for axis in list(trace.axes.values()):
        patterns = (*unchanged, *keep) if axis.role == "output" else unchanged
        pattern = next((p for p in patterns if fnmatchcase(axis.layer, p)), None)
        if pattern is not None:
            trace.frozen.append((axis.labels, f"kept by the pattern {pattern!r}"))
    solve(trace)
    groups = _group(trace)
    return ChannelGroups((*groups, *_unlabelled(trace, groups)), graph_digest(gm), trace)


def _freeze_outputs(trace: Trace, prune: Callable[[str], bool]) -> None:
    """The results of the model keep their width, except for channels that the config asks to remove."""
    asked = [axis.labels for axis in trace.axes.values() if axis.role == "output" and prune(axis.layer)]
    free = trace.sets.find(torch.cat(asked)) if asked else None
    for name, value in trace.outputs.items():
        for labels in labels_in(value):
            for family in labels.families:
                found = trace.sets.find(family.labels.reshape(-1))
                found = found if free is None else found[~torch.isin(found, free)]
                if len(found):
                    trace.frozen.append((found, f"{name} is an output of the model"))


def _unlabelled(trace: Trace, groups: Sequence[Group]) -> Iterator[Group]:
    """Layers whose weight is computed in a way that cannot be followed: they belong to no group, but are listed."""
    names = {group.name for group in groups}
    for name, call in trace.calls.items():
        weight, value = call.arguments.get(call.spec.weight or ""), trace.values[name]
        if call.spec.weight_axes is None or call.spec.weight in call.spec.activations:
            continue
        if not isinstance(weight, Node) or not isinstance(value, Labels):
            continue
        axis = (call.spec.channel_axis or -1) % value.rank
        layer = str(call.node.meta.get("module_path") or name)
        if (
            value.shape[axis] > 1
            and not any(axis in one.dims for one in value.families)
            and layer not in names
        ):
            reason = _stop_before(trace, weight) or f"the weight of {why(call)} is not a parameter"
            names.add(layer)
            yield Group(layer, value.shape[axis], None, (), (layer,), (name,), reason)


def _stop_before(trace: Trace, node: Node) -> str | None:
    """The nearest place before a node where labels were lost, and why."""
    found = [node]
    for one in found:  # grows while it is read
        if one.name in trace.stops:
            return trace.stops[one.name]
        found += [source for source in one.all_input_nodes if source not in found]
    return None


def _group(trace: Trace) -> tuple[Group, ...]:
    # arrays of numpy from here on: there are many short ones, and torch takes microseconds for each
    roots = trace.roots.numpy()
    classes: Classes = {id(axis.labels): roots[axis.labels.numpy()] for axis in trace.axes.values()}
    signature, made = _signatures(trace, classes)
    blocks = np.full(trace.sets.size, -1)
    for found, block in live_blocks(trace):
        at, number = found.numpy(), block.numpy()
        signature[at] = signature[at].min()  # to be chosen together
        finer = bool((blocks[at] < 0).all()) or number.max() > blocks[at].max()
        blocks[at] = number if finer else blocks[at]
    listed = [classes[id(axis.labels)] for axis in trace.axes.values() if axis.role == "output"]
    order = np.concatenate(listed) if listed else np.empty(0, dtype=np.int64)
    order = order[np.sort(np.unique(order, return_index=True)[1])]  # every class where it is first made
    order = order[made[order]]
    _, first, inverse = np.unique(signature[order], return_index=True, return_inverse=True)
    group = first.argsort().argsort()[inverse]  # numbered as the graph makes them
    counts = np.bincount(group, minlength=len(first))
    order = order[group.argsort(kind="stable")]
    group_of, channel_of = np.full(trace.sets.size, -1), np.full(trace.sets.size, -1)
    group_of[order] = np.repeat(np.arange(len(counts)), counts)
    channel_of[order] = np.arange(len(order)) - np.repeat(counts.cumsum() - counts, counts)
    members = np.split(order, counts.cumsum()[:-1]) if len(counts) else []
    return _build(trace, classes, group_of, channel_of, members, blocks)


def _signatures(trace: Trace, classes: Classes) -> tuple[Array, Array]:
    """int64 [labels], equal for classes in the same places, and which classes are computed by a layer."""
    generator, roots = np.random.default_rng(0), trace.roots.numpy()
    signature = np.zeros(trace.sets.size, dtype=np.int64)
    made, used = np.zeros((2, trace.sets.size), dtype=bool)
    places = dict(classes)
    for key, (family, _) in distinct_families(trace.values).items():
        if key not in places:
            places[key] = roots[family.labels.numpy().ravel()]
    for number, found in zip(generator.integers(-(2**62), 2**62, len(places)), places.values(), strict=True):
        ascend = bool((found[1:] > found[:-1]).all())  # mostly they do
        signature[found if ascend else np.unique(found)] += number
    for axis in trace.axes.values():
        if axis.role == "output":
            made[classes[id(axis.labels)]] = True
        if not axis.bare:
            used[classes[id(axis.labels)]] = True
    frozen = frozen_classes(trace).numpy()
    made &= used | ~frozen  # the rows of a position embedding are not channels of any layer
    signature[frozen] += generator.integers(-(2**62), 2**62)
    return signature, made


def _build(
    trace: Trace, classes: Classes, group_of: Array, channel_of: Array, members: list[Array], blocks: Array
) -> tuple[Group, ...]:
    slices: list[list[Slice]] = [[] for _ in members]
    producers: list[dict[str, None]] = [{} for _ in members]
    nodes: list[dict[str, None]] = [{} for _ in members]
    parts: dict[int, list[tuple[int, Tensor, Tensor]]] = {}  # arrays of labels are shared by many tensors
    for axis in trace.axes.values():
        key = id(axis.labels)
        if key not in parts:
            owner = group_of[classes[key]]
            found = [(number, (owner == number).nonzero()[0]) for number in sorted(_in_order(owner))]
            parts[key] = [
                (number, torch.from_numpy(at), torch.from_numpy(channel_of[classes[key][at]]))
                for number, at in found
            ]
        for number, index, channel in parts[key]:
            slices[number].append(Slice(axis.tensor, axis.axis, index, channel, axis.role, axis.rows))
            if axis.role == "output":
                producers[number][axis.layer] = None
    roots, reason_of = trace.roots.numpy(), find_reasons(trace)
    for family, names in distinct_families(trace.values).values():
        for number in _in_order(group_of[roots[family.labels.numpy().ravel()]]):
            nodes[number].update(dict.fromkeys(names))
    result, used = [], dict[str, int]()
    for number, own in enumerate(members):
        first = next(iter(producers[number]))
        used[first] = used.get(first, 0) + 1
        reason = reason_of(torch.from_numpy(own))
        block = np.unique(blocks[own], return_inverse=True)[1].reshape(-1)
        result.append(
            Group(
                name=first if used[first] == 1 else f"{first}#{used[first]}",
                channels=len(own),
                blocks=torch.from_numpy(block) if bool((blocks[own] >= 0).all()) else None,
                slices=tuple(slices[number]),
                producers=tuple(producers[number]),
                nodes=tuple(nodes[number]),
                frozen="it is a single channel" if reason is None and len(own) == 1 else reason,
            )
        )
    return tuple(result)


def _in_order(groups: Array) -> list[int]:
    """The distinct groups in order of appearance; usually one. Elements without a group have -1."""
    if len(groups) and bool((groups == groups[0]).all()):
        return [int(groups[0])] if groups[0] >= 0 else []
    return [group for group in dict.fromkeys(groups.tolist()) if group >= 0]
