"""The labels of a graph during its traversal, and the operations on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError
from sparsebit.graph.ops.spec import OpCall, fetch_tensor, place
from sparsebit.graph.value import items_in, map_tensors
from sparsebit.sparse.channels.group import Role
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.union import UnionFind


@dataclass(frozen=True, eq=False)
class Axis:
    """The labels along one axis of a parameter or buffer, the layer they belong to, and the role of the axis."""

    tensor: str
    axis: int
    labels: Tensor  # int64 [size]
    role: Role
    layer: str  # dotted name of the layer, or of the parameter itself
    rows: tuple[int, int] | None = None
    bare: bool = False  # no layer was seen to use it: a parameter that is added, moved or computed with


@dataclass(frozen=True, eq=False)
class Blocks:
    """The same number of labels must stay in every block: int64 [n] each."""

    labels: Tensor
    block: Tensor
    reason: str


@dataclass(eq=False)
class Trace:
    """Labels of every node and every parameter of ``gm``, and the constraints on them."""

    gm: GraphModule
    whole_heads: bool = True
    sets: UnionFind = field(default_factory=UnionFind)
    values: dict[str, object] = field(default_factory=dict)  # node name -> Labels, or a structure of them
    calls: dict[str, OpCall] = field(default_factory=dict)  # node name -> how its operator reads it
    axes: dict[tuple[str, int, int], Axis] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    frozen: list[tuple[Tensor, str]] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    blocks: list[Blocks] = field(default_factory=list)
    stops: dict[str, str] = field(default_factory=dict)  # node name -> why nothing is known of its result
    averages: dict[str, Family] = field(default_factory=dict)  # means whose divisor counts channels
    statistics: dict[str, str] = field(default_factory=dict)  # nodes that take statistics over channels
    outputs: dict[str, object] = field(default_factory=dict)  # node name -> labels of a result of the model
    aliases: dict[str, str] = field(default_factory=dict)  # every name of a tensor -> the first
    roots: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))

    def __post_init__(self) -> None:
        first: dict[int, str] = {}
        self._held = tensors_of(self.gm)
        for name, tensor in self._held.items():
            self.aliases[name] = first.setdefault(id(tensor), name)

    # Parameters and buffers

    def _fetch(self, name: str) -> Tensor:
        held = self._held.get(name)
        return held if held is not None else fetch_tensor(self.gm, name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter or buffer, before anything is removed."""
        return tuple(self._fetch(name).shape)

    def canonical(self, name: str) -> str:
        """The first name of a tensor that has several names in the model."""
        return self.aliases.get(name, name)

    def axis(
        self, name: str, axis: int, role: Role, layer: str | None = None, *, bare: bool = False
    ) -> Tensor:
        """The labels along one axis of a tensor; created on the first request, whose role and layer are kept."""
        name = self.canonical(name)
        found = self.axes.get((name, axis, 0))
        if found is None:
            self.shapes[name] = shape = tuple(self._fetch(name).shape)
            found = Axis(name, axis, self.sets.fresh(shape[axis]), role, layer or name, bare=bare)
        elif not bare and (found.bare or role == "output" != found.role):
            found = Axis(name, axis, found.labels, role, layer or name)
        self.axes[name, axis, 0] = found
        return found.labels

    def tie_axis(self, name: str, axis: int, labels: Tensor, role: Role, layer: str | None = None) -> None:
        """Say that position i of an axis belongs to ``labels[i]``."""
        canonical = self.canonical(name)
        if (canonical, axis, 0) in self.axes:
            self.sets.join(self.axis(name, axis, role, layer), labels)
            return
        self.shapes[canonical] = shape = tuple(self._fetch(canonical).shape)
        assert shape[axis] == len(labels), (name, axis, shape, labels.shape)
        self.axes[canonical, axis, 0] = Axis(canonical, axis, labels, role, layer or canonical)

    def tie_rows(self, name: str, axis: int, rows: tuple[int, int], labels: Tensor, layer: str) -> None:
        """As ``tie_axis`` with role "input", for some rows of axis 0 only."""
        name = self.canonical(name)
        self.shapes[name] = tuple(self._fetch(name).shape)
        if found := self.axes.get((name, axis, 1 + rows[0])):
            self.sets.join(found.labels, labels)
        else:
            self.axes[name, axis, 1 + rows[0]] = Axis(name, axis, labels, "input", layer, rows)

    def tensor(self, name: str) -> Labels:
        """A parameter or buffer as a value: every axis that is wider than one has its own labels."""
        held = self._fetch(name)
        parameter = isinstance(held, nn.Parameter)
        role: Role = "state" if not parameter else "output" if held.dim() > 1 else "scale"
        families = []
        for axis, size in enumerate(held.shape):
            if size > 1:
                labels = self.axis(name, axis, role, bare=True)
                families.append(Family((axis,), labels))
        return Labels(tuple(held.shape), tuple(families))

    # Constraints

    def simplify(self, family: Family) -> Family:
        """The family by classes, over the dims along which its classes still differ; itself if nothing changes."""
        if family.seen == self.sets.version:
            return family
        simple = self._simplified(family)
        object.__setattr__(simple, "seen", self.sets.version)
        return simple

    def _simplified(self, family: Family) -> Family:
        labels, dims = self.sets.find(family.labels), list(family.dims)
        if len(dims) == 1 and len(labels) > 1 and labels[0] != labels[-1]:
            return family if torch.equal(labels, family.labels) else Family(family.dims, labels)
        for axis in reversed(range(labels.dim())):
            first = labels.select(axis, 0)
            if labels.shape[axis] == 1 or torch.equal(first.unsqueeze(axis).expand_as(labels), labels):
                labels = first
                del dims[axis]
        return Family(tuple(dims), labels)

    def simple(self, value: Labels) -> list[Family]:
        """The families of a value that still vary."""
        return [family for family in map(self.simplify, value.families) if family.dims]

    def pin(self, family: Family, dims: Iterable[int], reason: str) -> Family:
        """Keep the size of these dims: everything along them is now removed together or not at all.

        Returns the simpler family.
        """
        wanted = [axis for axis, dim in enumerate(family.dims) if dim in set(dims)]
        if not wanted or not family.labels.numel():
            return family
        labels = family.labels
        for axis in wanted:
            self.sets.join(labels.narrow(axis, 0, 1), labels)
        simple = self.simplify(family)
        if not simple.dims:
            self.notes.append((int(labels.reshape(-1)[0]), reason))
        return simple

    def pinned(self, value: Labels, dims: Iterable[int], reason: str) -> list[Family]:
        """The families of a value that still vary, after ``pin``."""
        pinned = [self.pin(family, dims, reason) for family in self.simple(value)]
        return [family for family in pinned if family.dims]

    def freeze(self, value: object, reason: str) -> None:
        """No channel in this value may be removed."""
        families = [family for labels in labels_in(value) for family in labels.families]
        self.frozen += [(family.labels.reshape(-1), reason) for family in families]

    def balance(self, labels: Tensor, blocks: int, reason: str) -> None:
        """Equal parts of ``labels`` [n] must keep the same number of channels."""
        block = torch.arange(blocks).repeat_interleave(len(labels) // blocks)
        self.blocks.append(Blocks(labels, block, reason))

    def labels_of(self, node: object) -> Labels:
        """The labels of a node that holds one tensor."""
        if isinstance(node, str):
            return self.tensor(node)
        assert isinstance(node, Node), node
        value = self.values.get(node.name)
        if not isinstance(value, Labels):
            raise GraphError(
                "a tensor was expected here", where=place(node), got=repr(node.meta.get("value"))
            )
        return value

    def adopt(self, node: object, families: tuple[Family, ...]) -> None:
        """A constant fill takes the labels of the tensor it is combined with, and is created in the remaining size."""
        assert isinstance(node, Node)
        value = self.labels_of(node)
        self.values[node.name] = Labels(value.shape, families, zero=value.zero)


def labels_in(value: object) -> Iterable[Labels]:
    """Every ``Labels`` in a value, which may be a tuple of them."""
    return (item for item in items_in(value) if isinstance(item, Labels))


def distinct_families(values: Mapping[str, object]) -> dict[int, tuple[Family, list[str]]]:
    """Every array of labels in these values once, with the names of the nodes that carry it."""
    found: dict[int, tuple[Family, list[str]]] = {}
    for name, value in values.items():
        for labels in labels_in(value):
            for family in labels.families:
                found.setdefault(id(family.labels), (family, []))[1].append(name)
    return found


def blank(info: object) -> object:
    """The value of a node without any labels, from its recorded shapes."""
    return map_tensors(info, lambda one: Labels(one.shape))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by qualified name, shared ones under each of their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
