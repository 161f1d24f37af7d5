"""A dense tensor and its scales as a matrix in memory order, and how a kernel cuts that matrix into tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

# Elements of one tile: 16 for each of 128 threads, which is at least two 16-byte loads a thread.
TILE = 2048
# Programs that a reduction is spread over: about 16 for each multiprocessor of a large GPU. A constant, so that sums
# are added up in the same order on every device.
PROGRAMS = 2112


@dataclass(frozen=True)
class Matrix:
    """Memory of a dense tensor as [rows, width], with one scale per column or one per row (row r has r % channels).

    Example:
        >>> Matrix(rows=64, width=3136, channels=32, by_column=False).tile
        (1, 2048)
    """

    rows: int
    width: int
    channels: int
    by_column: bool

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of one tile, powers of two."""
        columns = min(_power_of_two(self.width), 128 if self.by_column else TILE)
        return min(_power_of_two(self.rows), TILE // columns), columns

    @property
    def chunks(self) -> tuple[int, int]:
        """How often the direction that is summed over is divided, and the tiles in each part.

        One part sums along a row, or down a column, tile after tile.
        """
        tile_rows, tile_columns = self.tile
        across, down = math.ceil(self.width / tile_columns), math.ceil(self.rows / tile_rows)
        tiles, beside = (down, across) if self.by_column else (across, down)
        steps = math.ceil(tiles / min(tiles, math.ceil(PROGRAMS / beside)))
        return math.ceil(tiles / steps), steps


def as_matrix(x: Tensor, scale: Tensor) -> tuple[Matrix, list[int]] | None:
    """How scales that broadcast against ``x`` lie in its memory; None where that is not a matrix.

    Also returns the order of the axes in memory: a scale permuted to it and flattened has one value per channel.
    Channels-last memory is fine; a tensor with gaps is not, nor are channels on two axes with others between them.

    Example:
        >>> import torch
        >>> as_matrix(torch.zeros(8, 3, 5, 5), torch.zeros(1, 3, 1, 1))
        (Matrix(rows=24, width=25, channels=3, by_column=False), [0, 1, 2, 3])
    """
    if x.numel() == 0:
        return None
    order = sorted(range(x.dim()), key=lambda axis: (-x.stride(axis), -x.shape[axis]))
    expected = 1
    for axis in reversed(order):
        if x.shape[axis] != 1:
            if x.stride(axis) != expected:
                return None
            expected *= x.shape[axis]
    if scale.numel() == 1:
        return Matrix(rows=1, width=x.numel(), channels=1, by_column=False), list(range(scale.dim()))
    if scale.dim() != x.dim():
        return None
    outer = channels = inner = 1
    for axis in order:
        size = x.shape[axis]
        if size == 1:
            continue
        if scale.shape[axis] == 1:
            outer, inner = (outer, inner * size) if channels > 1 else (outer * size, inner)
        elif inner > 1 or scale.shape[axis] != size:
            return None
        else:
            channels *= size
    if inner == 1 and outer > 1:
        return Matrix(rows=outer, width=channels, channels=channels, by_column=True), order
    return Matrix(rows=outer * channels, width=inner, channels=channels, by_column=False), order


def _power_of_two(size: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(0, size - 1).bit_length()
