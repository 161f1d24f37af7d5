"""Which elements of a tensor share one scale: tensors as rows, and scales back in the tensor's shape.

Everything that measures or quantizes a tensor sees it as [C, N]: C rows, one scale each. ``Layout`` says how a
tensor of 0 to 5 dimensions becomes such rows; the functions here do it without knowing what the numbers mean.

Behind all of them is one idea, ``_row_view``: a *view* of the tensor in which whole axes index the rows. For a
weight [O, I, kh, kw] with groups of 32 inputs it is [O, I / 32, 32, kh, kw], and axes 0 and 1 index the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError

Granularity = Literal["tensor", "channel", "group", "token"]
ActivationLayout = Literal["NCHW", "NLC"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a tensor is cut into rows of elements that share one scale.

    - ``tensor``: one row.
    - ``channel``: one row per index of ``axis``. For the weight [I, O / groups, ...] of a grouped transposed
      convolution, ``axis=1`` alone shares a scale between the groups (all that ONNX can express); with
      ``groups`` set there is one row for each of the O output channels.
    - ``group``: for weights; each channel's row is cut again, every ``group_size`` input channels. The input
      axis is the other one of the first two. The last group is shorter when the size does not divide.
    - ``token``: one row per position, over the last axis.

    Example:
        >>> to_rows(torch.zeros(8, 3, 5, 5), Layout(kind="channel", axis=1)).shape
        torch.Size([3, 200])
    """

    kind: Granularity = "tensor"
    axis: int = 0
    group_size: int | None = None
    groups: int = 1

    def __post_init__(self) -> None:
        if (self.kind == "group") != (self.group_size is not None):
            raise SparsebitError(
                "group_size belongs to the granularity 'group'",
                got=f"{self.kind}, group_size={self.group_size}",
            )
        if self.group_size is not None and self.group_size < 1:
            raise SparsebitError("a group needs at least one element", got=f"group_size={self.group_size}")
        if self.groups > 1 and (self.axis != 1 or self.kind not in ("channel", "group")):
            raise SparsebitError(
                "groups are for the weight of a transposed convolution, whose output channels are on axis 1",
                got=f"{self.kind}, axis={self.axis}, groups={self.groups}",
            )


def activation_axis(ndim: int, layout: ActivationLayout) -> int:
    """The channel axis of an activation: 1 for NCHW, the last for NLC; a tensor too small for that has axis 0.

    NLC means "channels last" whatever the rank, so the [N, C] input of a classifier is fine.

    Example:
        >>> activation_axis(4, "NCHW"), activation_axis(3, "NLC"), activation_axis(2, "NLC"), activation_axis(1, "NCHW")
        (1, 2, 1, 0)
    """
    return max(ndim - 1, 0) if layout == "NLC" else min(1, max(ndim - 1, 0))


def row_count(shape: Sequence[int], rows: Layout) -> int:
    """How many rows, and so how many scales, a tensor of this shape has."""
    if rows.kind != "group":
        view, axes = _row_view(torch.empty(shape, device="meta"), rows)
        return math.prod(view.shape[axis] for axis in axes)
    channels = row_count(shape, replace(rows, kind="channel", group_size=None)) if len(shape) > 1 else 1
    return channels * math.ceil(_input_length(shape, rows) / _size(shape, rows))


def to_rows(x: Tensor, rows: Layout, *, any_order: bool = False) -> Tensor:
    """The tensor as [C, N], without a copy where its memory allows.

    ``any_order=True`` lets the elements *inside* a row come in any order, which spares tensors in
    channels-last memory a copy. Observers do not mind; ``from_rows`` does.

    Example:
        >>> to_rows(torch.arange(4).view(1, 2, 2), Layout(kind="token"))
        tensor([[0, 1],
                [2, 3]])
    """
    if _is_ragged(x.shape, rows):
        raise SparsebitError(
            "the last group is shorter than the others, so the rows have two lengths",
            got=f"{_input_length(x.shape, rows)} input channels in groups of {rows.group_size}",
            hint="use row_blocks, which returns one block for each length",
        )
    view, axes = _row_view(x, rows)
    rest = [axis for axis in range(view.dim()) if axis not in axes]
    if any_order:
        rest.sort(key=view.stride, reverse=True)
    count = math.prod(view.shape[axis] for axis in axes)
    return view.permute([*axes, *rest]).reshape(count, math.prod(view.shape[axis] for axis in rest))


def from_rows(values: Tensor, shape: Sequence[int], rows: Layout) -> Tensor:
    """The inverse of ``to_rows``: [C, N] back in the shape of the tensor it came from."""
    view, axes = _row_view(torch.empty(shape, device="meta"), rows)
    order = [*axes, *(axis for axis in range(view.dim()) if axis not in axes)]
    back = [order.index(axis) for axis in range(view.dim())]
    return values.reshape([view.shape[axis] for axis in order]).permute(back).reshape(tuple(shape))


def row_blocks(x: Tensor, rows: Layout) -> tuple[Tensor, ...]:
    """The rows as one [C, N] block, or as two when the last group is shorter: full groups, then the rest.

    What is found for each block goes back together with ``join_blocks``.
    """
    if not _is_ragged(x.shape, rows):
        return (to_rows(x, rows),)
    size, axis = _size(x.shape, rows), _input_axis(x.dim(), rows)
    by_group = _cut(x, 0, size=x.shape[0] // rows.groups) if rows.groups > 1 else x
    axis += rows.groups > 1
    length = by_group.shape[axis]
    sizes = (length // size * size, length % size)
    blocks = []
    for part, part_size in zip(by_group.split(sizes, dim=axis), (size, length % size), strict=True):
        whole = part.flatten(0, 1) if rows.groups > 1 else part
        blocks.append(to_rows(whole, replace(rows, group_size=part_size)))
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


def to_samples(x: Tensor, rows: Layout) -> Tensor:
    """An activation as [C, B, M]: its rows, apart for each of the B samples along axis 0, each in any order.

    Where axis 0 is no batch (a vector, or the channels themselves are on axis 0) it is all one sample.
    """
    axis = rows.axis % x.dim() if x.dim() else 0
    if x.dim() < 2 or rows.kind not in ("tensor", "channel") or (rows.kind == "channel" and axis == 0):
        return to_rows(x, rows).unsqueeze(1)
    channel = [axis] if rows.kind == "channel" else []
    rest = sorted((dim for dim in range(1, x.dim()) if dim not in channel), key=x.stride, reverse=True)
    sizes = [math.prod(x.shape[dim] for dim in dims) for dims in (channel, [0], rest)]
    return x.permute(*channel, 0, *rest).reshape(sizes)


def align(x: Tensor, rows: Layout, *values: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A view of ``x`` and each of the [C] ``values`` shaped to broadcast against that view.

    Arithmetic between them followed by ``reshape(x.shape)`` applies to every row its own value. Nothing is copied,
    except the values of ragged groups, which are repeated along the input axis.

    Example:
        >>> view, (scale,) = align(torch.zeros(4, 6), Layout(kind="group", group_size=3), torch.zeros(8))
        >>> view.shape, scale.shape
        (torch.Size([4, 2, 3]), torch.Size([4, 2, 1]))
    """
    if _is_ragged(x.shape, rows):
        size, length = _size(x.shape, rows), _input_length(x.shape, rows)
        repeats = torch.full((math.ceil(length / size),), size)
        repeats[-1] = length - size * (len(repeats) - 1)
        values = tuple(
            value.reshape(-1, len(repeats)).repeat_interleave(repeats.to(value.device), dim=1).flatten()
            for value in values
        )
        rows = replace(rows, group_size=1)
    view, axes = _row_view(x, rows)
    count = math.prod([view.shape[axis] for axis in axes])  # a list, because torch.compile takes no generator
    wrong = next((value for value in values if value.numel() != count), None)
    if wrong is not None:
        raise SparsebitError(
            "the number of values is not the number of rows",
            expected=f"{count} for a tensor of shape {tuple(x.shape)} and {rows}",
            got=f"{wrong.numel()}",
        )
    ascending = sorted(axes)
    shape = [view.shape[axis] if axis in axes else 1 for axis in range(view.dim())]
    return view, tuple(
        value.reshape([view.shape[axis] for axis in axes])
        .permute([axes.index(axis) for axis in ascending])
        .reshape(shape)
        for value in values
    )


def spread(values: Tensor, shape: Sequence[int], rows: Layout) -> Tensor:
    """``values`` [C] in a shape that broadcasts against the whole tensor, one value for each element of a row.

    Example:
        >>> spread(torch.tensor([1.0, 2.0]), (2, 3), Layout(kind="channel"))
        tensor([[1.],
                [2.]])
    """
    view, (aligned,) = align(torch.empty(shape, device="meta"), rows, values)
    if view.dim() == len(shape):
        return aligned
    return aligned.expand(view.shape).reshape(tuple(shape))


def _row_view(x: Tensor, rows: Layout) -> tuple[Tensor, tuple[int, ...]]:
    """A view of ``x`` and the axes of it that index the rows, in the order of the rows."""
    if rows.kind == "tensor" or x.dim() == 0:
        return x, ()
    if rows.kind == "token":
        return x, tuple(range(x.dim() - 1))
    if x.dim() == 1:
        return (x, (0,)) if rows.kind == "channel" else (_cut(x, 0, size=_size(x.shape, rows)), (0,))
    out, into = rows.axis % x.dim(), -1
    axes: tuple[int, ...] = (out,)
    size = 1
    if rows.kind == "group":
        into, size = _input_axis(x.dim(), rows), _size(x.shape, rows)
    if rows.groups > 1:
        x = _cut(x, 0, size=x.shape[0] // rows.groups)
        out, into, axes = out + 1, into + 1, (0, out + 1)
    if rows.kind == "group":
        x = _cut(x, into, size=size)
        axes = (*(axis + (axis > into) for axis in axes), into)
    return x, axes


def _cut(x: Tensor, axis: int, *, size: int) -> Tensor:
    """Axis of length n as two, [n / size, size]. (``unflatten`` with -1 cannot tell the length of an empty one.)"""
    return x.view(*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])


def _input_axis(ndim: int, rows: Layout) -> int:
    return 0 if ndim < 2 or rows.axis % ndim == 1 else 1


def _input_length(shape: Sequence[int], rows: Layout) -> int:
    if not shape:
        return 1
    axis = _input_axis(len(shape), rows)
    return shape[axis] // (rows.groups if axis == 0 else 1)


def _is_ragged(shape: Sequence[int], rows: Layout) -> bool:
    return rows.kind == "group" and _input_length(shape, rows) % _size(shape, rows) != 0


def _size(shape: Sequence[int], rows: Layout) -> int:
    """How many input channels a group has, which is at most all."""
    assert rows.group_size is not None
    return max(1, min(rows.group_size, _input_length(shape, rows)))
