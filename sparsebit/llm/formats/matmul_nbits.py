"""Weights as ONNX Runtime's ``MatMulNBits`` and ``GatherBlockQuantized`` read them: 2, 4 or 8 bits in blocks.

A row of [in] values is divided into blocks of 16 to 256 (a power of two), each packed from the lowest bits on, with one
float32 scale. Zero points are packed along the blocks of a row; without them zero is in the middle of the range.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.llm.formats.format import by_rows
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import pack_bits, unpack_bits


class BlockWeight(NamedTuple):
    """The inputs and attributes of one product."""

    values: Tensor  # uint8 [out, blocks, bytes of a block]
    scales: Tensor  # float32 [out, blocks]
    zero_points: Tensor | None  # uint8 [out, bytes]
    bits: int
    block_size: int

    def numbers(self) -> Tensor:
        """The weight [out, in] as the operator computes it, (q - zero point) * scale."""
        rows, count = self.scales.shape
        values = unpack_bits(self.values, self.bits, self.block_size).float()
        middle = torch.full((rows, count), 2.0 ** (self.bits - 1))
        points = middle if self.zero_points is None else unpack_bits(self.zero_points, self.bits, count)
        return ((values - points.float()[..., None]) * self.scales[..., None]).reshape(rows, -1)


def stored_bits(bits: int) -> int:
    """Three bits have no type and are stored as four."""
    return 4 if bits == 3 else bits


def block_of(size: int) -> int:
    """The largest power of two up to 256 that divides a group of this size; at least 16 is needed."""
    return min(size & -size, 256)


def block_size(held: PackedTensor) -> int:
    """The block of a packed weight."""
    return block_of(held.grid.layout.group_size or held.shape[1])


def block_kind(held: PackedTensor) -> tuple[int, int, bool]:
    """Bits, block and whether there are zero points: weights with the same three can be one product."""
    return stored_bits(held.grid.code.bits), block_size(held), not held.grid.code.symmetric


def block_weight(held: PackedTensor) -> BlockWeight:
    """A packed weight in this layout, on the CPU.

    Example:
        >>> from sparsebit.numerics import CodeType, Grid, Layout
        >>> grid = Grid(torch.ones(1), torch.zeros(1), CodeType("full", 4), Layout(kind="channel"))
        >>> block_weight(PackedTensor.of(torch.arange(-8.0, 8)[None], grid)).values[0, 0, :3].tolist()
        [16, 50, 84]
    """
    bits, size, (rows, columns) = stored_bits(held.grid.code.bits), block_size(held), held.shape
    count = columns // size
    code = held.grid.code
    offset = 2 ** (bits - 1) if code.symmetric else 0
    values = (held.codes().to(torch.int16) + offset).to(torch.uint8).reshape(rows, count, size)
    scale, zero_point = (one.repeat_interleave(count // one.shape[1], 1) for one in by_rows(held))
    points = None if code.symmetric else pack_bits(zero_point.to(torch.uint8), bits).cpu()
    return BlockWeight(pack_bits(values, bits).cpu(), scale.float().contiguous().cpu(), points, bits, size)


def joined(weights: list[BlockWeight]) -> BlockWeight:
    """Concatenate the rows of weights of one kind with the same input."""
    first = weights[0]
    points = [one.zero_points for one in weights if one.zero_points is not None]
    return first._replace(
        values=torch.cat([one.values for one in weights]),
        scales=torch.cat([one.scales for one in weights]),
        zero_points=torch.cat(points) if points else None,
    )


def with_rows(weight: BlockWeight, order: Tensor) -> BlockWeight:
    """The weight with its rows reordered: row i is the old row ``order[i]``."""
    points = weight.zero_points
    return weight._replace(
        values=weight.values[order],
        scales=weight.scales[order],
        zero_points=None if points is None else points[order],
    )
