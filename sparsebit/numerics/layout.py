"""Which elements of a tensor share one scale: tensors as rows, and scales back in the tensor's shape.

Everything that measures or quantizes a tensor sees it as [C, N]: C rows, one scale each. ``Layout`` says how a
tensor of 0 to 5 dimensions becomes such rows; the functions here do it without knowing what the numbers mean.

Behind all of them is one idea, ``_row_view``: a *view* of the tensor in which some axes index the rows. For a
weight [O, I, kh, kw] with groups of 32 inputs it is [O, I / 32, 32, kh, kw], and axes 0 and 1 index the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError

Granularity = Literal["tensor", "channel", "group", "token"]
ActivationLayout = Literal["NCHW", "NLC"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which elements of a tensor share one scale. Nothing is inferred from shapes.

    - ``tensor``: all of them.
    - ``channel``: those with the same index along ``axes``: ``(0,)`` for a weight [out, in, ...], ``(1,)`` for an
      activation [batch, channels, ...], ``(0, 1)`` for stacked experts [experts, out, in].
    - ``group``: for weights; the elements of each channel are divided into groups of ``group_size`` along
      ``input_axis``. The last group is shorter if the size does not divide evenly.
    - ``token``: all elements of one position, along the last axis.

    ``groups`` is for the weight [in, out / groups, ...] of a grouped transposed convolution: ``axes=(1,)`` alone shares
    a scale between the groups (all that ONNX can express); with ``groups`` there is one for each output channel.

    Example:
        >>> to_rows(torch.zeros(8, 3, 5, 5), Layout(kind="channel", axes=(1,))).shape
        torch.Size([3, 200])
        >>> row_count((4, 16, 64), Layout(kind="group", axes=(0, 1), input_axis=2, group_size=32))
        128
    """

    kind: Granularity = "tensor"
    axes: tuple[int, ...] = (0,)
    input_axis: int = 1
    group_size: int | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        grouped = self.kind == "group"
        wrong = {
            f"unknown granularity, none of {', '.join(GRANULARITIES)}": self.kind not in GRANULARITIES,
            "group_size belongs to the granularity 'group'": grouped != (self.group_size is not None),
            "a group needs at least one element": self.group_size is not None and self.group_size < 1,
            "groups are cut along an input axis, which cannot be an output axis too": grouped
            and self.input_axis in self.axes,
            "there is at least one group": self.groups < 1,
            "groups are for the weight of a transposed convolution, whose output channels are on axis 1": (
                self.groups > 1 and (self.axes != (1,) or self.kind not in ("channel", "group"))
            ),
        }
        if problem := next((text for text, is_wrong in wrong.items() if is_wrong), None):
            raise SparsebitError(problem, got=str(self))


PER_TENSOR = Layout()


def activation_axis(ndim: int, order: ActivationLayout) -> int:
    """The channel axis of an activation: 1 for NCHW, the last for NLC; for a tensor with fewer axes, 0.

    NLC means "channels last" for any rank, so the [N, C] input of a classifier works too.

    Example:
        >>> activation_axis(4, "NCHW"), activation_axis(3, "NLC"), activation_axis(2, "NLC"), activation_axis(1, "NCHW")
        (1, 2, 1, 0)
    """
    return max(ndim - 1, 0) if order == "NLC" else min(1, max(ndim - 1, 0))


def row_count(shape: Sequence[int], layout: Layout) -> int:
    """The number of rows, and therefore of scales, of a tensor of this shape."""
    if not _is_ragged(shape, layout):
        view, axes = _row_view(torch.empty(shape, device="meta"), layout)
        return math.prod([view.shape[axis] for axis in axes])
    channels = row_count(shape, replace(layout, kind="channel", group_size=None)) if layout.axes else 1
    return channels * math.ceil(_input_length(shape, layout) / _size(shape, layout))


def to_rows(x: Tensor, layout: Layout, *, any_order: bool = False) -> Tensor:
    """The tensor as [C, N], without a copy if its memory allows it.

    ``any_order=True`` allows any order of the elements *inside* a row, which avoids a copy of tensors in channels-last
    memory.

    Example:
        >>> to_rows(torch.arange(4).view(1, 2, 2), Layout(kind="token"))
        tensor([[0, 1],
                [2, 3]])
    """
    if _is_ragged(x.shape, layout):
        raise SparsebitError(
            "the last group is shorter than the others, so the rows have two lengths",
            got=f"{_input_length(x.shape, layout)} input channels in groups of {layout.group_size}",
            hint="use row_blocks, which returns one block for each length",
        )
    view, axes = _row_view(x, layout)
    rest = [axis for axis in range(view.dim()) if axis not in axes]
    if any_order:
        rest.sort(key=view.stride, reverse=True)
    count = math.prod([view.shape[axis] for axis in axes])
    return view.permute([*axes, *rest]).reshape(count, math.prod([view.shape[axis] for axis in rest]))


def row_blocks(x: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """The rows as one [C, N] block, or as two when the last group is shorter: full groups, then the rest.

    ``join_blocks`` joins the results of the blocks.
    """
    if not _is_ragged(x.shape, layout):
        return (to_rows(x, layout),)
    size, axis = _size(x.shape, layout), layout.input_axis % x.dim()
    by_group = _cut(x, 0, size=x.shape[0] // layout.groups) if layout.groups > 1 else x
    axis += layout.groups > 1
    length = by_group.shape[axis]
    sizes = (length // size * size, length % size)
    blocks = []
    for part, part_size in zip(by_group.split(sizes, dim=axis), (size, length % size), strict=True):
        joined = part.flatten(0, 1) if layout.groups > 1 else part
        blocks.append(to_rows(joined, replace(layout, group_size=part_size)))
    return tuple(blocks)


def join_blocks(values: Sequence[Tensor]) -> Tensor:
    """Values of each block of ``row_blocks`` ([C] each) as one [C], in the order of the rows.

    Example:
        >>> blocks = row_blocks(torch.arange(10).view(2, 5), Layout(kind="group", group_size=2))
        >>> join_blocks([block.amax(1) for block in blocks])
        tensor([1, 3, 4, 6, 8, 9])
    """
    if len(values) == 1:
        return values[0]
    full, last = values
    channels = len(last)
    return torch.cat([full.reshape(channels, -1), last.reshape(channels, 1)], dim=1).flatten()


def to_samples(x: Tensor, layout: Layout) -> Tensor:
    """An activation as [C, B, M]: its rows, separately for each of the B samples along axis 0, in any order inside.

    If axis 0 is not a batch (a vector, or channels on axis 0), everything is one sample.
    """
    channel = [axis % x.dim() for axis in layout.axes] if layout.kind == "channel" and x.dim() else []
    if x.dim() < 2 or layout.kind not in ("tensor", "channel") or 0 in channel:
        return to_rows(x, layout).unsqueeze(1)
    rest = sorted((dim for dim in range(1, x.dim()) if dim not in channel), key=x.stride, reverse=True)
    sizes = [math.prod(x.shape[dim] for dim in dims) for dims in (channel, [0], rest)]
    return x.permute(*channel, 0, *rest).reshape(sizes)


def align(
    x: Tensor, layout: Layout, *values: Tensor, order: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A view of ``x`` and each of the [C] ``values`` shaped to broadcast against that view.

    Arithmetic between them followed by ``reshape(x.shape)`` applies to every row its own value. Nothing is copied,
    except the values of ragged groups, and of groups of input channels taken in another ``order`` ([in], the input
    channel at each place), which are repeated along the input axis.

    Example:
        >>> view, (scale,) = align(torch.zeros(4, 6), Layout(kind="group", group_size=3), torch.zeros(8))
        >>> view.shape, scale.shape
        (torch.Size([4, 2, 3]), torch.Size([4, 2, 1]))
    """
    if layout.kind == "group" and (order is not None or _is_ragged(x.shape, layout)):
        values = tuple(_by_input(value, x.shape, layout, order) for value in values)
        layout = replace(layout, group_size=1)
    view, axes = _row_view(x, layout)
    count = math.prod([view.shape[axis] for axis in axes])  # a list, because torch.compile takes no generator
    for value in values:
        if value.numel() != count:
            raise SparsebitError(
                "the number of scales does not match the tensor",
                expected=f"{count} for shape {tuple(x.shape)} and {layout}",
                got=f"{value.numel()}",
            )
    ascending = sorted(axes)
    shape = [view.shape[axis] if axis in axes else 1 for axis in range(view.dim())]
    return view, tuple(
        value.reshape([view.shape[axis] for axis in axes])
        .permute([axes.index(axis) for axis in ascending])
        .reshape(shape)
        for value in values
    )


def spread(values: Tensor, shape: Sequence[int], layout: Layout, order: Tensor | None = None) -> Tensor:
    """``values`` [C] in a shape that broadcasts against the tensor, one value for each element of a row.

    Example:
        >>> spread(torch.tensor([1.0, 2.0]), (2, 3), Layout(kind="channel"))
        tensor([[1.],
                [2.]])
    """
    view, (aligned,) = align(torch.empty(shape, device="meta"), layout, values, order=order)
    if view.dim() == len(shape):
        return aligned
    return aligned.expand(view.shape).reshape(tuple(shape))


def _by_input(values: Tensor, shape: Sequence[int], layout: Layout, order: Tensor | None) -> Tensor:
    """The values of groups, repeated for each input channel."""
    size, length = _size(shape, layout), _input_length(shape, layout)
    group = torch.arange(length, device=values.device) // size
    if order is not None:
        group = torch.empty_like(group).scatter_(0, order.to(values.device), group)
    per_channel = math.ceil(length / size)
    if values.numel() % per_channel:
        raise SparsebitError(
            "the number of scales does not match the tensor",
            expected=f"a multiple of {per_channel} for shape {tuple(shape)} and {layout}",
            got=f"{values.numel()}",
        )
    return values.reshape(-1, per_channel)[:, group].flatten()


def _row_view(x: Tensor, layout: Layout) -> tuple[Tensor, tuple[int, ...]]:
    """A view of ``x`` and the axes of it that index the rows, in the order of the rows."""
    dims = x.dim()
    if layout.kind == "tensor" or dims == 0:
        return x, ()
    if layout.kind == "token":
        return x, tuple(range(dims - 1))
    named = (*layout.axes, layout.input_axis) if layout.kind == "group" else layout.axes
    for axis in named:
        if not -dims <= axis < dims:
            raise SparsebitError(f"a tensor of shape {tuple(x.shape)} has no axis {axis}", got=f"{layout}")
    axes = tuple([axis % dims for axis in layout.axes])
    into = layout.input_axis % dims
    size = _size(x.shape, layout) if layout.kind == "group" else 1
    if layout.groups > 1:
        x = _cut(x, 0, size=x.shape[0] // layout.groups)
        axes, into = (0, *[axis + 1 for axis in axes]), into + 1
    if layout.kind == "group":
        x = _cut(x, into, size=size)
        axes = (*[axis + (axis > into) for axis in axes], into)
    return x, axes


def _cut(x: Tensor, axis: int, *, size: int) -> Tensor:
    """Split an axis of length n into [n / size, size]; ``unflatten`` with -1 does not work for an empty axis."""
    return x.view(*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])


def _input_length(shape: Sequence[int], layout: Layout) -> int:
    if not shape:
        return 1
    axis = layout.input_axis % len(shape)
    return shape[axis] // (layout.groups if axis == 0 else 1)


def _is_ragged(shape: Sequence[int], layout: Layout) -> bool:
    return layout.kind == "group" and _input_length(shape, layout) % _size(shape, layout) != 0


def _size(shape: Sequence[int], layout: Layout) -> int:
    """The number of input channels in a group, at most all."""
    assert layout.group_size is not None
    return max(1, min(layout.group_size, _input_length(shape, layout)))
