"""A linear layer that multiplies a 2:4 weight in int8: its inputs are rounded vector by vector, when they come."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebit.kernels.int8_vectors import round_fused, scale_fused
from sparsebit.numerics import Grid, Layout
from sparsebit.numerics.grid import SCALE_OF_ZEROS, choose_scale
from sparsebit.numerics.int8_vectors import CODE, round_vectors, scale_sums
from sparsebit.numerics.snapping import kernels_run_on
from sparsebit.sparse.compressed_linear import CompressedLinear

SIZES = 32  # outputs and inputs must be a multiple of it for torch's 2:4 kernel


class Int8Linear(CompressedLinear):
    """Replaces ``nn.Linear`` for inference.

    The weight has one scale for each output, and each vector of the input one for its largest magnitude. Sums of
    products are exact integers. On CUDA cuSPARSELt multiplies; on other devices the weight is dense: the reference,
    with the same sums. NaN and infinity give a vector of NaN.

    Example:
        >>> layer = Int8Linear(torch.tensor([[0.0, 2.0, 0.0, -1.0]]), bias=torch.ones(1))
        >>> layer(torch.tensor([[4.0, 0.5, 0.0, 1.0]]))
        tensor([[0.9921]])
    """

    scale: Tensor
    VECTORS = 16

    def _compress(self, weight: Tensor) -> Tensor:
        grid = Grid(*choose_scale(*weight.aminmax(dim=1), CODE), CODE, Layout(kind="channel", axes=(0,)))
        self.register_buffer("scale", grid.scale)
        return super()._compress(grid.codes(weight))

    def _multiply(self, x: Tensor) -> Tensor:
        fused = kernels_run_on(x)
        steps, scale = round_fused(x, SCALE_OF_ZEROS) if fused else round_vectors(x)
        sums = self._products(steps, dtype=torch.int32) if x.is_cuda else torch._int_mm(steps, self.codes.T)
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return (scale_fused if fused else scale_sums)(sums, self.scale, scale, self.bias, dtype)

    def extra_repr(self) -> str:
        """Sizes, shown when the model is printed."""
        return f"{super().extra_repr()}, int8"
