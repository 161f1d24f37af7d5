"""AdaRound: which way each weight is rounded is chosen, not given (Nagel et al., arXiv 2004.10568)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebit.config import Side, TensorSpec
from sparsebit.quantization.granularity import Rows, spread
from sparsebit.quantization.quantizers.base import Quantizer, register_quantizer

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
    """Rounds each weight down, or up where ``up`` says so; until that was decided, to the nearest.

    ``soft`` holds V while it is being decided: then weights lie between the two codes, h(V) of the way up.
    """

    TYPE = "adaround"
    up: Tensor

    def __init__(self, name: str, side: Side, spec: TensorSpec, rows: Rows | None = None) -> None:
        super().__init__(name, side, spec, rows)
        self.register_buffer("up", torch.empty(0, dtype=torch.bool))
        self.soft: Tensor | None = None

    def reset(self) -> None:
        """Forget the grid and every decision."""
        super().reset()
        self.up, self.soft = self.up.new_empty(0), None

    def steps_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x / scale`` and the scale, both in the shape of ``x``."""
        scale = spread(self.scale.to(x.dtype), x.shape, self.rows)
        return x / scale, scale

    def begin(self, x: Tensor) -> Tensor:
        """V that leaves every weight where it is; it is to be trained."""
        steps, _ = self.steps_of(x.detach())
        fraction = (steps - steps.floor()).clamp(1e-4, 1 - 1e-4)
        self.soft = inverse_rectified_sigmoid(fraction).requires_grad_()
        return self.soft

    def decide(self) -> None:
        """Round as V says from now on."""
        assert self.soft is not None
        self.up, self.soft = (self.soft.detach() >= 0), None

    def prepare(self, x: Tensor) -> Tensor:
        """Weights moved onto the code they are rounded to."""
        if self.soft is None and self.up.numel() == 0:
            return x
        steps, scale = self.steps_of(x)
        return (steps.floor() + self.up.to(x.dtype)) * scale

    def snap(self, x: Tensor) -> Tensor:
        """On the grid; on the way to it while V is being trained."""
        if self.soft is None:
            return super().snap(x)
        steps, scale = self.steps_of(x)
        qparams = self.qparams()
        zero_point = spread(qparams.zero_point.to(x.dtype), x.shape, self.rows)
        codes = steps.detach().floor() + rectified_sigmoid(self.soft) + zero_point
        return (codes.clamp(qparams.qmin, qparams.qmax) - zero_point) * scale
