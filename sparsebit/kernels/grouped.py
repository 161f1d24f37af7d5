"""Many weights snapped in one launch, forward and backward: for a small weight, the launch is the main cost.

Weights are placed one after the other in one buffer, which is divided into chunks of one scale each. Results and
gradients are views of such buffers. The reference is ``numerics.snapping`` for each weight alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparsebit.kernels.launch import launch, on_device_of
from sparsebit.kernels.tiling import DenseMatrix

CHUNK = 1024


@dataclass(frozen=True)
class Member:
    """One weight of a group: its memory, and the grid it is snapped to, whose zero point is 0."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    matrix: DenseMatrix
    low: int
    high: int
    gradient_scale: float

    @property
    def size(self) -> int:
        """The number of its values."""
        return self.matrix.rows * self.matrix.width


class WeightGroup:
    """What the kernels must know about the weights of a group, on their device.

    Args:
        members: weights in order. Each has as many scales as rows, or one.
        device: where they are.
        magnitude: whether scales count by their magnitude.
    """

    def __init__(self, members: Sequence[Member], device: torch.device, magnitude: bool) -> None:
        self.members, self.magnitude = tuple(members), magnitude
        starts, lengths, channels = [], [], []
        per_channel: list[Tensor] = []
        start = channel = 0
        for member in members:
            rows, width = member.matrix.rows, member.matrix.width
            first = torch.arange(0, width, CHUNK)
            begin = (torch.arange(rows)[:, None] * width + first[None, :]).flatten()
            starts.append(start + begin)
            lengths.append((width - first).clamp(max=CHUNK).repeat(rows))
            channels.append(channel + torch.arange(rows).repeat_interleave(len(first)))
            numbers = torch.tensor([member.low, member.high, member.gradient_scale], dtype=torch.float32)
            per_channel.append(numbers[:, None].expand(3, rows))
            start, channel = start + member.size, channel + rows
        self.size, self.channels = start, channel
        owner = torch.cat(channels)
        counts = torch.bincount(owner, minlength=channel)
        self.chunks = len(owner)
        self.starts = torch.cat(starts).to(device)
        self.lengths = torch.cat(lengths).to(device, torch.int32)
        self.owner = owner.to(device, torch.int32)
        self.counts = counts.to(device, torch.int32)
        self.first = (counts.cumsum(0) - counts).to(device, torch.int32)
        self.low, self.high, self.factor = torch.cat(per_channel, dim=1).to(device).unbind()

    def cut(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Views of one buffer, in the shapes and the memory order of the weights."""
        views, start = [], 0
        for member in self.members:
            views.append(flat.as_strided(member.shape, member.stride, start))
            start += member.size
        return tuple(views)


def snap_group(group: WeightGroup, weights: Sequence[Tensor], scales: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Every weight on its grid, with the gradients of ``numerics.snapping.snap``."""
    return _apply(group, len(weights), *weights, *scales)


class _SnapGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: WeightGroup, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        x = torch.cat([_flat(weight) for weight in tensors[:count]])
        scale = torch.cat(tensors[count:])
        ctx.save_for_backward(x, scale)
        ctx.group, ctx.learned = group, any(ctx.needs_input_grad[2 + count :])
        ctx.set_materialize_grads(False)
        return group.cut(_forward(group, x, scale))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        group, (x, scale) = ctx.group, ctx.saved_tensors
        laid = zip(group.members, grads, strict=True)
        to_x, to_scale = _backward(
            group, torch.cat([_as_laid(m, g, x) for m, g in laid]), x, scale, ctx.learned
        )
        to_scales: tuple[Tensor | None, ...] = (None,) * len(group.members)
        if to_scale is not None:
            to_scales = to_scale.split([member.matrix.channels for member in group.members])
        return None, None, *group.cut(to_x), *to_scales


_apply = cast("Callable[..., tuple[Tensor, ...]]", _SnapGroup.apply)


def _flat(weight: Tensor) -> Tensor:
    """A dense tensor in the order of its memory."""
    return weight.as_strided((weight.numel(),), (1,))


def _as_laid(member: Member, grad: Tensor | None, x: Tensor) -> Tensor:
    """The gradient of a member in the order of its memory."""
    if grad is None:
        return x.new_zeros(member.size)
    if grad.stride() != member.stride:
        grad = torch.empty_strided(member.shape, member.stride, dtype=x.dtype, device=x.device).copy_(grad)
    return _flat(grad)


def _forward(group: WeightGroup, x: Tensor, scale: Tensor) -> Tensor:
    from sparsebit.kernels import grouped_triton as kernels

    y = torch.empty_like(x)
    with on_device_of(x):
        launch(
            kernels.snap_chunks,
            group.chunks,
            (x, y, scale, group.starts, group.lengths, group.owner, group.low, group.high),
            (),
            (group.magnitude, CHUNK),
        )
    return y


def _backward(
    group: WeightGroup, grad: Tensor, x: Tensor, scale: Tensor, learned: bool
) -> tuple[Tensor, Tensor | None]:
    from sparsebit.kernels import grouped_triton as kernels

    to_x = torch.empty_like(x)
    sums = scale.new_empty(group.chunks) if learned else scale
    tables = (scale, group.starts, group.lengths, group.owner, group.low, group.high)
    with on_device_of(x):
        launch(
            kernels.snap_chunks_backward,
            group.chunks,
            (grad, x, to_x, sums, *tables),
            (),
            (learned, group.magnitude, CHUNK),
        )
        if not learned:
            return to_x, None
        to_scale = torch.empty_like(scale)
        launch(
            kernels.add_chunk_sums,
            group.channels,
            (sums, scale, to_scale, group.first, group.counts, group.factor),
            (),
            (group.magnitude, 128),
            warps=1,
        )
    return to_x, to_scale
