"""What can be removed from a model: groups of channels, and the positions of each channel in the model's tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from sparsebit.display import in_notebook, printable
from sparsebit.errors import GraphError
from sparsebit.graph.cpu_by_default import cpu_by_default
from sparsebit.graph.ops.spec import OpCall

if TYPE_CHECKING:
    from sparsebit.sparse.channels.trace import Trace

Role = Literal["output", "input", "scale", "state"]


@dataclass(frozen=True, eq=False)
class Slice:
    """The positions of a group's channels in one tensor.

    Position ``index[i]`` along ``axis`` belongs to channel ``channel[i]``; one channel may own many positions (a head
    owns its dims, a channel before a flatten owns its pixels).

    Args:
        tensor: qualified name of the parameter or buffer in the graph ("layer1.0.conv1.weight").
        role: "output" if the layer computes the channels, "input" if it reads them, "scale" for the factors
            of a norm, "state" for biases, shifts and running statistics.
        rows: only these rows (start, stop) of axis 0 hold the positions: a grouped convolution reads different channels
        in every group. None means all.
    """

    tensor: str
    axis: int
    index: Tensor  # int64 [n]
    channel: Tensor  # int64 [n]
    role: Role
    rows: tuple[int, int] | None = None

    def take(self, tensor: Tensor) -> Tensor:
        """The elements of each position, [n, elements]: sum over dim 1 for a norm, scatter by ``channel`` for scores.

        Example:
            >>> where = Slice("w", 1, torch.tensor([0, 2]), torch.tensor([0, 1]), "input")
            >>> where.take(torch.tensor([[1, 2, 3], [4, 5, 6]]))
            tensor([[1, 4],
                    [3, 6]])
        """
        if self.rows is not None:
            tensor = tensor[self.rows[0] : self.rows[1]]
        picked = tensor.movedim(self.axis, 0).index_select(0, self.index.to(tensor.device))
        return picked.reshape(len(picked), -1)

    def clear(self, mask: Tensor, dead: Tensor) -> None:
        """Set ``mask`` to False at the positions of the dead channels (bool [channels])."""
        gone = self.index[dead[self.channel]]
        part = mask if self.rows is None else mask[self.rows[0] : self.rows[1]]
        part.movedim(self.axis, 0)[gone] = False


@dataclass(frozen=True, eq=False)
class Group:
    """Channels of one kind (also heads, or hidden units), each of which can be removed without the others.

    Everything a channel owns, in every slice, is removed with it.

    Args:
        name: the first layer that makes the channels; stable and unique.
        channels: how many can be chosen separately.
        blocks: int64 [channels] or None; if set, every block must lose the same number of channels. Blocks differ in
        size if one also holds channels that no layer computes, such as padding.
        slices: every place in a parameter or buffer that holds channels.
        producers: the layers that compute them, in graph order.
        nodes: the graph nodes whose results contain them.
        frozen: why none of them can be removed (the operator and its place), or None.
    """

    name: str
    channels: int
    blocks: Tensor | None
    slices: tuple[Slice, ...]
    producers: tuple[str, ...]
    nodes: tuple[str, ...]
    frozen: str | None = None

    def check(self, kept: Tensor) -> None:
        """Raise ``GraphError`` unless this group allows the choice ``kept`` (bool [channels])."""
        where = f"channel group {self.name!r}"
        if kept.dtype != torch.bool or tuple(kept.shape) != (self.channels,):
            raise GraphError(
                "the channels to keep are not one flag per channel",
                where=where,
                expected=f"bool [{self.channels}]",
                got=f"{kept.dtype} {list(kept.shape)}",
            )
        if bool(kept.all()):
            return
        if self.frozen is not None:
            raise GraphError(
                "this group cannot shrink", where=where, expected="every channel kept", got=self.frozen
            )
        if not bool(kept.any()):
            raise GraphError(
                "no channel is kept; a layer cannot be empty", where=where, hint="keep at least one"
            )
        if self.blocks is not None:
            counts = torch.zeros(int(self.blocks.max()) + 1, dtype=torch.int64)
            counts.index_add_(0, self.blocks, (~kept).long())
            if int(counts.min()) != int(counts.max()):
                raise GraphError(
                    "every block must lose the same number of channels",
                    where=where,
                    got=f"blocks that lose {counts.tolist()}",
                )


@dataclass(frozen=True, eq=False)
class ChannelGroups(Sequence[Group]):
    """The groups of one graph, in the order their first producers run.

    ``hash`` identifies their graph; ``trace`` has the labels from which they were made, which shrinking reads.
    """

    groups: tuple[Group, ...]
    hash: str
    trace: Trace = field(repr=False)

    _repr_html_ = in_notebook

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __getitem__(self, index: int) -> Group:  # type: ignore[override]
        return self.groups[index]

    @property
    def free(self) -> tuple[Group, ...]:
        """The groups that can shrink."""
        return tuple(group for group in self.groups if group.frozen is None)

    def frozen(self) -> tuple[Group, ...]:
        """The groups that cannot shrink; each says why."""
        return tuple(group for group in self.groups if group.frozen is not None)

    @cached_property
    def _by_name(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}

    def by_name(self, name: str) -> Group:
        """The group of this name."""
        found = self._by_name.get(name)
        if found is None:
            raise GraphError(
                f"no channel group is named {name!r}",
                expected=", ".join(group.name for group in self.groups[:20]),
            )
        return found

    def __str__(self) -> str:
        lines = []
        for group in self.groups:
            blocks = "" if group.blocks is None else f" in {int(group.blocks.max()) + 1} blocks"
            others = f" with {', '.join(group.producers[1:])}" if group.producers[1:] else ""
            state = f"; cannot shrink: {group.frozen}" if group.frozen else ""
            lines.append(f"{group.name}: {group.channels} channels{blocks}{others}{state}")
        return printable("\n".join(lines))


@cpu_by_default
def mask_tensors(
    groups: ChannelGroups, kept: Mapping[str, Tensor], *, prune_bias: bool = True
) -> dict[str, Tensor]:
    """Bool masks of the tensors that lose channels, in the shapes of the tensors: False where a channel is removed.

    The model multiplied by them computes what the shrunk model computes. Groups not named in ``kept`` stay. Without
    ``prune_bias``, the biases of linear layers and convolutions stay, and so do the weights that read the channels.
    """
    biases = {str(call.bias_name) for call in groups.trace.calls.values() if has_own_bias(call)}
    stays = set() if prune_bias else set(map(groups.trace.canonical, biases))
    masks: dict[str, Tensor] = {}
    for name, flags in kept.items():
        group = groups.by_name(name)
        group.check(flags)
        if bool(flags.all()):
            continue
        for where in group.slices:
            if where.tensor in stays or (where.role == "input" and not prune_bias):
                continue
            if where.tensor not in masks:
                masks[where.tensor] = torch.ones(groups.trace.shapes[where.tensor], dtype=torch.bool)
            where.clear(masks[where.tensor], ~flags)
    return masks


def has_own_bias(call: OpCall) -> bool:
    """Whether a layer multiplies by a weight and adds a bias, both parameters; PRUNE_BIAS concerns such layers."""
    return call.spec.channels in ("linear", "convolution") and bool(call.weight_name and call.bias_name)
