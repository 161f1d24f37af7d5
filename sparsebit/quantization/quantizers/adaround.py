"""AdaRound: the rounding direction of each weight is learned (Nagel et al., arXiv 2004.10568)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebit.config import Side, TensorSpec
from sparsebit.numerics import Layout
from sparsebit.numerics.snapping import align_grid
from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.registration import register_quantizer

ZETA, GAMMA = 1.1, -0.1


def rectified_sigmoid(v: Tensor) -> Tensor:
    """h(V) = clamp(sigmoid(V) * (zeta - gamma) + gamma, 0, 1): reaches 0 and 1 (eq. 23).

    Example:
        >>> rectified_sigmoid(torch.tensor([-9.0, 0.0, 9.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """
    return (torch.sigmoid(v) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def inverse_rectified_sigmoid(h: Tensor) -> Tensor:
    """The V with ``rectified_sigmoid(V) == h``, for h strictly between 0 and 1."""
    p = (h - GAMMA) / (ZETA - GAMMA)
    return torch.log(p / (1 - p))


@register_quantizer
class AdaRound(Quantizer):
    """Rounds each weight down, or up if ``up`` says so; to the nearest until that is decided."""

    TYPE = "adaround"
    up: Tensor

    def __init__(self, name: str, side: Side, spec: TensorSpec, layout: Layout | None = None) -> None:
        super().__init__(name, side, spec, layout)
        self.register_buffer("up", torch.empty(0, dtype=torch.bool))

    def reset(self) -> None:
        """Reset the grid and all decisions."""
        super().reset()
        self.up = self.up.new_empty(0)

    def nearest(self, x: Tensor) -> Tensor:
        """The decisions that round every weight to the nearest code."""
        positions = self.grid().positions(x.detach())
        return positions.round() > positions.floor()

    def prepare(self, x: Tensor) -> Tensor:
        """Move weights onto the code they are rounded to; gradients pass straight through."""
        if self.up.numel() == 0:
            return x
        with torch.no_grad():
            view, scale, _ = align_grid(x, self.scale, self.zero_point, self.layout)
            moved = torch.div(view, scale).floor_().add_(self.up.view_as(view)).mul_(scale).view_as(x)
        if torch.is_grad_enabled() and x.requires_grad:
            return x + (moved - x.detach()).to(x.dtype)
        return moved.to(x.dtype)
