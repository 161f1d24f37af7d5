"""A dense tensor and its scales as a matrix in memory order, and how a kernel cuts that matrix into tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

# Elements of one tile: 16 for each of 128 threads, which is at least two 16-byte loads a thread.
TILE = 2048
# Programs that a reduction is spread over: about 16 for each multiprocessor of a large GPU. A constant, so that sums
# are added up in the same order on every device.
PROGRAMS = 2112


@dataclass(frozen=True)
class DenseMatrix:
    """Memory of a dense tensor as [rows, width], with one scale per column or one per row (row r has r % channels).

    Example:
        >>> DenseMatrix(rows=64, width=3136, channels=32, by_column=False).tile
        (1, 2048)
    """

    rows: int
    width: int
    channels: int
    by_column: bool

    @functools.cached_property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of one tile, powers of two; in a large matrix, with few columns beyond its width."""
        columns = min(_power_of_two(self.width), 128 if self.by_column else TILE)
        if not self.by_column and self.rows * self.width >= PROGRAMS * TILE:
            sizes = [columns >> halved for halved in range(columns.bit_length()) if columns >> halved >= 64]
            covered = {size: math.ceil(self.width / size) * size for size in sizes}
            tight = [size for size in sizes if covered[size] <= 1.05 * self.width]
            columns = max(tight, default=min(covered, key=covered.__getitem__, default=columns))
        return min(_power_of_two(self.rows), TILE // columns), columns

    @functools.cached_property
    def chunks(self) -> tuple[int, int]:
        """How often the direction that is summed over is divided, and the tiles in each part.

        One part sums along a row, or down a column, tile after tile.
        """
        tile_rows, tile_columns = self.tile
        across, down = math.ceil(self.width / tile_columns), math.ceil(self.rows / tile_rows)
        tiles, beside = (down, across) if self.by_column else (across, down)
        if tiles <= 4:  # sums that nothing is added to are worth more than more programs
            return 1, tiles
        steps = math.ceil(tiles / min(tiles, math.ceil(PROGRAMS / beside)))
        return math.ceil(tiles / steps), steps

    @functools.cached_property
    def forward_launch(self) -> tuple[int, tuple[Any, ...]]:
        """The number of programs that cover the matrix with one tile each, and their arguments."""
        rows, columns = self.tile
        programs = math.ceil(self.rows / rows) * math.ceil(self.width / columns)
        return programs, (self.rows, self.width, self.channels, self.by_column, rows, columns)

    def backward_launch(self, sums: bool) -> tuple[int, tuple[int, int, int, int]]:
        """How many programs, and (outer, inner, chunks, steps): with sums they are [outer, channels, inner].

        Without sums, every tile is a separate program.
        """
        return self._with_sums if sums else self._without_sums

    @functools.cached_property
    def _with_sums(self) -> tuple[int, tuple[int, int, int, int]]:
        return self._launch(*self.chunks)

    @functools.cached_property
    def _without_sums(self) -> tuple[int, tuple[int, int, int, int]]:
        size, tile = (self.rows, self.tile[0]) if self.by_column else (self.width, self.tile[1])
        return self._launch(math.ceil(size / tile), 1)

    def _launch(self, chunks: int, steps: int) -> tuple[int, tuple[int, int, int, int]]:
        size, tile = (self.width, self.tile[1]) if self.by_column else (self.rows, self.tile[0])
        outer, inner = (chunks, 1) if self.by_column else (self.rows // self.channels, chunks)
        return chunks * math.ceil(size / tile), (outer, inner, chunks, steps)


def as_matrix(x: Tensor, scale: Tensor) -> tuple[DenseMatrix, list[int] | None] | None:
    """The memory of ``x`` as a matrix with its scales by row or column; None if that is not possible.

    Also returns the order of the axes that scales have to be permuted to, where theirs is not that of the memory.
    Channels-last memory is fine; a tensor with gaps is not, nor are channels on two axes with others between them.

    Example:
        >>> import torch
        >>> as_matrix(torch.zeros(8, 3, 5, 5), torch.zeros(1, 3, 1, 1))
        (DenseMatrix(rows=24, width=25, channels=3, by_column=False), None)
    """
    return _found_matrix(x.shape, x.stride(), scale.shape)


def find_matrix(
    shape: Sequence[int], stride: Sequence[int], scale_shape: Sequence[int]
) -> tuple[DenseMatrix, list[int] | None] | None:
    """``as_matrix`` of tensors with these sizes."""
    size = math.prod(shape)
    if size == 0:
        return None
    order = sorted(range(len(shape)), key=lambda axis: (-stride[axis], -shape[axis]))
    expected = 1
    for axis in reversed(order):
        if shape[axis] != 1:
            if stride[axis] != expected:
                return None
            expected *= shape[axis]
    if math.prod(scale_shape) == 1:
        return DenseMatrix(rows=1, width=size, channels=1, by_column=False), None
    if len(scale_shape) != len(shape):
        return None
    outer = channels = inner = 1
    axes: list[int] = []
    for axis in order:
        if shape[axis] == 1:
            continue
        if scale_shape[axis] == 1:
            outer, inner = (outer, inner * shape[axis]) if axes else (outer * shape[axis], inner)
        elif inner > 1 or scale_shape[axis] != shape[axis]:
            return None
        else:
            channels *= shape[axis]
            axes.append(axis)
    permuted = None if axes == sorted(axes) else order
    if inner == 1 and outer > 1:
        return DenseMatrix(rows=outer, width=channels, channels=channels, by_column=True), permuted
    return DenseMatrix(rows=outer * channels, width=inner, channels=channels, by_column=False), permuted


_found_matrix = functools.lru_cache(maxsize=4096)(find_matrix)


def _power_of_two(size: int) -> int:
    """The smallest power of two that is at least this number."""
    return 1 << max(0, size - 1).bit_length()
