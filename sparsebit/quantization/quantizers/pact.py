"""PACT: an activation clipped where training wants it to be (Choi et al., arXiv 1805.06085)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.config import Side, TensorSpec
from sparsebit.quantization.granularity import Rows
from sparsebit.quantization.numerics import QParams
from sparsebit.quantization.quantizers.base import Quantizer, register_quantizer


@register_quantizer
class PACT(Quantizer):
    """Clips to [0, alpha] (affine) or [-alpha, alpha] (symmetric), alpha a parameter, and spreads the grid over it.

    ``alpha_value`` is where alpha starts, whatever the data. Add ``regularization()`` to the loss to keep it small.
    """

    TYPE = "pact"

    def __init__(self, name: str, side: Side, spec: TensorSpec, rows: Rows | None = None) -> None:
        super().__init__(name, side, spec, rows)
        self.alpha = nn.Parameter(torch.tensor([float(spec.quantizer_options.get("alpha_value", 10.0))]))

    def set_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        """The range that was measured plays no part."""
        super().set_range(*self._range(), x)

    def _range(self) -> tuple[Tensor, Tensor]:
        alpha = self.alpha.detach()
        return (-alpha if self.spec.symmetric else torch.zeros_like(alpha)), alpha

    def prepare(self, x: Tensor) -> Tensor:
        """Clip. The gradient of alpha is that of every value it clips (eq. 3)."""
        alpha = self.alpha.to(x.dtype)
        clipped = torch.where(x < alpha, x, alpha)
        lower = -alpha if self.spec.symmetric else torch.zeros_like(alpha)
        return torch.where(clipped > lower, clipped, lower)

    def qparams(self, x: Tensor | None = None) -> QParams:
        """The grid over the clipped range as it is now."""
        lo, hi = self._range()
        return self.grid.qparams(lo, hi)

    def regularization(self) -> Tensor:
        """alpha squared, to be added to the loss with a small factor (1e-4 in the old examples)."""
        return self.alpha.square().sum()
