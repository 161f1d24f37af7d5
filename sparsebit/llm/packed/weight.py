"""A matrix held as packed quantized values with its grid: what is stored, exported and multiplied."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.numerics import Grid


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """Quantized values of a weight [out, in] as a bit stream, and the grid that gives them their meaning."""

    packed: Tensor  # bytes [out, ceil(in * bits / 8)]
    grid: Grid
    shape: tuple[int, int]

    @classmethod
    def of(cls, weight: Tensor, grid: Grid) -> PackedWeight:
        """Pack a weight that lies on the grid already.

        Example:
            >>> from sparsebit.numerics import CodeType, Layout
            >>> grid = Grid(torch.tensor([0.5]), torch.zeros(1), CodeType("int", 4), Layout(kind="channel"))
            >>> held = PackedWeight.of(torch.tensor([[1.0, -2.0, 3.5]]), grid)
            >>> held.packed, held.weight()
            (tensor([[74, 15]], dtype=torch.uint8), tensor([[ 1.0000, -2.0000,  3.5000]]))
        """
        codes = grid.codes(weight)
        return cls(grid.pack(codes), grid, (weight.shape[0], weight.shape[1]))

    def codes(self) -> Tensor:
        """The quantized values [out, in]."""
        return self.grid.unpack(self.packed, self.shape[1])

    def weight(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The numbers [out, in] they stand for."""
        return self.grid.numbers(self.codes(), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the stream, the scales and the zero points as a file holds them."""
        points = 0 if self.grid.code.symmetric else self.grid.scale.numel() * self.grid.code.bits / 8
        scales = self.grid.scale.numel() * self.grid.scale.element_size()
        return self.packed.numel() + scales + int(points)
