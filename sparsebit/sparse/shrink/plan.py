"""A shrink plan: what to keep of every tensor and which constants to change, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from sparsebit.errors import GraphError
from sparsebit.graph.cpu_by_default import cpu_by_default
from sparsebit.graph.digest import graph_digest
from sparsebit.sparse.channels.group import ChannelGroups
from sparsebit.sparse.shrink.alive import Alive
from sparsebit.sparse.shrink.biases import carry_biases

Path = tuple[str | int, ...]


class Scaled(NamedTuple):
    """A computed value times a constant, for sizes that follow those of the input."""

    times: float
    over: int = 1


@dataclass(frozen=True)
class Edit:
    """One constant of the graph that depends on a size: its position in its node, its old and its new value.

    ``path`` leads from the node: ("args", 1, 0) or ("kwargs", "size", 2); ("target",) names another function,
    ("scale",) a factor for the result, and ("restore",) the value that all readers of the result get instead.
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
        added: for each bias, what the biases of removed channels add to it: [channels] before any is removed.
        edits: constants in the graph.
        modules: attributes of ``torch.nn`` layers: path -> name -> value.
        sizes: shapes of the results of every node that changes, in order; for numbers, the number.
        aliases: tensors that the model holds under several names: name -> the one used here.
    """

    hash: str
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    index: Mapping[str, Mapping[int, Tensor]] = field(default_factory=dict)
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    added: Mapping[str, Tensor] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """The remaining part of one tensor, under any of its names; also for optimizer and averaged state."""
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
        for axis in sorted(axes):  # rows first: each is one run of memory
            tensor = tensor.index_select(axis, axes[axis].to(tensor.device))
        return tensor

    def weights(self, name: str, tensor: Tensor) -> Tensor:
        """The new parameter or buffer: ``cut``, plus what removed channels add; itself if unchanged."""
        first = self.aliases.get(name, name)
        if first in self.added:
            tensor = tensor + self.added[first].to(tensor.device)
        return self.cut(name, tensor) if first in self.index or first in self.columns else tensor

    def check(self, gm: GraphModule) -> None:
        """Raise ``GraphError`` unless the plan was made for ``gm``."""
        found = graph_digest(gm)
        if found != self.hash:
            raise GraphError(
                "this plan was made for another graph",
                expected=self.hash,
                got=found,
                hint="capture the original model as before, or make a new plan",
            )


@cpu_by_default
def make_plan(
    gm: GraphModule, groups: ChannelGroups, kept: Mapping[str, Tensor], *, prune_bias: bool = True
) -> ShrinkPlan:
    """The changes to ``gm`` with which only the kept channels remain.

    Args:
        groups: the result of ``find_groups(gm)``.
        kept: by group name, bool [channels]; groups that are not named keep their size.
        prune_bias: whether the biases of removed channels are removed too; see ``carry_biases``.
    """
    from sparsebit.sparse.shrink.constants import find_edits  # it needs the plan's own types

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
            every = torch.ones(len(axis.labels), dtype=torch.bool)
            columns.setdefault(axis.tensor, []).append(every if flags is None else flags)
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
        added={} if prune_bias else carry_biases(groups, alive),
        edits=tuple(edits),
        modules=modules,
        sizes=sizes,
        aliases={name: first for name, first in trace.aliases.items() if name != first},
    )


def _columns(name: str, rows: list[Tensor]) -> Tensor | None:
    """The columns left in every group [groups, k]; a group that is removed keeps any k of them."""
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
