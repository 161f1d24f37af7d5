"""A shrink plan: what to keep of every tensor and which constants to change, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.errors import GraphError
from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.channels.group import ChannelGroups

FORMAT = 1
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Edit:
    """One constant of the graph that knows a size: where it is in its node, what it was and what it becomes.

    ``path`` leads from the node: ("args", 1, 0) or ("kwargs", "size", 2); ("target",) names another function
    and ("scale",) a factor for the result.
    """

    node: str
    path: Path
    old: Any
    new: Any


@dataclass(frozen=True, eq=False)
class ShrinkPlan:
    """Everything needed to shrink a model, without the model.

    Args:
        hash: the graph it was made for.
        kept: by channel group, which channels stay: bool [channels].
        index: by tensor and axis, the positions that stay: int64.
        columns: for the weights of grouped convolutions, the columns that stay in every group: [groups, k].
        edits: constants in the graph.
        modules: attributes of ``torch.nn`` layers: path -> name -> value.
        sizes: shapes of the results of every node that changes, in order; for numbers, the number.
        aliases: tensors that the model holds under several names: name -> the one used here.
    """

    hash: str
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    index: Mapping[str, Mapping[int, Tensor]] = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """What is left of one tensor, under any of its names. Optimizer and averaged state shrink alike."""
        name = self.aliases.get(name, name)
        axes = self.index.get(name, {})
        columns = self.columns.get(name)
        if columns is not None:
            rows = len(tensor) // len(columns)
            parts = [
                part[:, where.to(tensor.device)]
                for part, where in zip(tensor.split(rows), columns, strict=True)
            ]
            tensor = torch.cat(parts)
        for axis in sorted(axes):  # rows first: they are copied whole
            tensor = tensor.index_select(axis, axes[axis].to(tensor.device))
        return tensor

    def changes(self, name: str) -> bool:
        """Whether a tensor loses anything."""
        name = self.aliases.get(name, name)
        return name in self.index or name in self.columns

    def check(self, gm: GraphModule) -> None:
        """Raise ``GraphError`` unless ``gm`` is the graph the plan was made for."""
        found = graph_digest(gm)
        if found != self.hash:
            raise GraphError(
                "this plan was made for another graph",
                expected=self.hash,
                got=found,
                hint="capture the original model as before, or make a new plan",
            )

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As JSON data and named tensors, for a file; ``unpack`` reverses it."""
        tensors = {f"kept/{name}": flags for name, flags in self.kept.items()}
        tensors |= {f"columns/{name}": where for name, where in self.columns.items()}
        tensors |= {
            f"index/{name}/{axis}": at for name, axes in self.index.items() for axis, at in axes.items()
        }
        data = {
            "format": FORMAT,
            "hash": self.hash,
            "edits": [[edit.node, list(edit.path), edit.old, edit.new] for edit in self.edits],
            "modules": {path: dict(values) for path, values in self.modules.items()},
            "sizes": dict(self.sizes),
            "aliases": dict(self.aliases),
        }
        return data, tensors

    @classmethod
    def unpack(cls, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ShrinkPlan:
        """A plan from what ``pack`` gave."""
        if data.get("format") != FORMAT:
            raise GraphError(
                "a shrink plan of another format", expected=str(FORMAT), got=str(data.get("format"))
            )
        index: dict[str, dict[int, Tensor]] = {}
        for key, where in tensors.items():
            if key.startswith("index/"):
                name, _, axis = key.removeprefix("index/").rpartition("/")
                index.setdefault(name, {})[int(axis)] = where
        named = {kind: {} for kind in ("kept", "columns")}  # type: dict[str, dict[str, Tensor]]
        for key, where in tensors.items():
            kind, _, name = key.partition("/")
            if kind in named:
                named[kind][name] = where
        return cls(
            hash=data["hash"],
            kept=named["kept"],
            index=index,
            columns=named["columns"],
            edits=tuple(Edit(node, tuple(path), old, new) for node, path, old, new in data["edits"]),
            modules=data["modules"],
            sizes=data["sizes"],
            aliases=data["aliases"],
        )


def make_plan(gm: GraphModule, groups: ChannelGroups, kept: Mapping[str, Tensor]) -> ShrinkPlan:
    """What has to change in ``gm`` so that only the kept channels are left.

    Args:
        groups: what ``find_groups(gm)`` found.
        kept: by group name, bool [channels]; groups that are not named keep their size.
    """
    from sparsebit.sparse.shrink.alive import Alive  # they need the plan's own types
    from sparsebit.sparse.shrink.constants import find_edits

    alive = Alive(groups, kept)
    index: dict[str, dict[int, Tensor]] = {}
    columns: dict[str, list[Tensor]] = {}
    known: dict[int, tuple[Tensor | None, Tensor | None]] = {}  # arrays of labels are shared by many tensors
    for axis in groups.trace.axes.values():
        if id(axis.labels) not in known:
            flags = alive.of(axis.labels)
            known[id(axis.labels)] = flags, None if flags is None else torch.nonzero(flags).reshape(-1)
        flags, where = known[id(axis.labels)]
        if axis.rows is not None:
            whole = torch.ones(len(axis.labels), dtype=torch.bool)
            columns.setdefault(axis.tensor, []).append(whole if flags is None else flags)
        elif where is not None:
            index.setdefault(axis.tensor, {})[axis.axis] = where
    grouped = {name: _columns(name, rows) for name, rows in columns.items()}
    trace = groups.trace
    edits, modules, sizes = find_edits(gm, trace, alive, index)
    return ShrinkPlan(
        hash=groups.hash,
        kept={name: flags.clone() for name, flags in kept.items() if not bool(flags.all())},
        index=index,
        columns={name: where for name, where in grouped.items() if where is not None},
        edits=tuple(edits),
        modules=modules,
        sizes=sizes,
        aliases={name: first for name, first in trace.aliases.items() if name != first},
    )


def _columns(name: str, rows: list[Tensor]) -> Tensor | None:
    """The columns left in every group [groups, k]; a group that goes as a whole keeps any k of them."""
    if all(bool(flags.all()) for flags in rows):
        return None
    left = [torch.nonzero(flags).reshape(-1) for flags in rows]
    widths = {len(where) for where in left if len(where)}
    if len(widths) != 1:
        raise GraphError(
            "the groups of a convolution would keep different numbers of channels",
            where=name,
            got=str(widths),
        )
    width = widths.pop()
    return torch.stack([where if len(where) else torch.arange(width) for where in left])
