"""Learned step size quantization (Esser et al., arXiv 1902.08153)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.config import Side, TensorSpec
from sparsebit.numerics import CodeType, Layout
from sparsebit.numerics.grid import SCALE_OF_ZEROS
from sparsebit.quantization.observers.base import Observer, Range, extremes
from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.registration import register_quantizer


class MeanMagnitude(NamedTuple):
    """The mean magnitude of the values of each row, and the smallest value."""

    total: Tensor  # [C]
    values: Tensor  # [C], how many
    lo: Tensor  # [C]


@dataclass(frozen=True, kw_only=True)
class StepSize(Observer[MeanMagnitude]):
    """The first step size of LSQ, expressed as a range: scale = 2 * mean(abs(x)) / sqrt(qmax)."""

    def init(self, x: Tensor) -> MeanMagnitude:
        """The state before any data."""
        zeros = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        return MeanMagnitude(zeros, zeros.clone(), zeros.clone())

    def update(self, state: MeanMagnitude, x: Tensor) -> MeanMagnitude:
        """Add the magnitudes of ``x`` [C, N]."""
        lo, _ = extremes(x)
        seen = MeanMagnitude(
            x.detach().abs().sum(1, dtype=torch.float64),
            torch.full_like(state.values, x.shape[1]),
            lo.double().clamp(max=0),
        )
        return self.merge(state, seen)

    def merge(self, a: MeanMagnitude, b: MeanMagnitude) -> MeanMagnitude:
        """All values of both."""
        return MeanMagnitude(a.total + b.total, a.values + b.values, torch.minimum(a.lo, b.lo))

    def finish(self, state: MeanMagnitude, code: CodeType) -> Range:
        """The range whose grid has the step size; two-sided if any value is below zero."""
        two_sided = bool((state.lo < 0).any())
        qmax = CodeType("int", code.bits).high if two_sided else code.high
        scale = 2 * state.total / state.values.clamp(min=1) / math.sqrt(qmax)
        hi = (scale * qmax).float()
        lo = -(scale * (qmax + 1)).float() if two_sided else torch.zeros_like(hi)
        return Range(lo, hi)


@register_quantizer
class LSQ(Quantizer):
    """A grid whose scale is a parameter, trained with the model.

    The gradient of the scale is divided by sqrt(N * qmax), where N is how many values share it, so that it moves as
    slowly as the values do. The zero point is fixed: 0 for values that are never negative, and in the middle of the
    codes otherwise, for every scheme. If training makes a scale negative, its magnitude is used.
    """

    TYPE = "lsq"
    MAGNITUDE = True

    def __init__(self, name: str, side: Side, spec: TensorSpec, layout: Layout | None = None) -> None:
        super().__init__(name, side, spec, layout)
        self.observer: Observer[Any] = self.first_observer()
        del self.scale
        self.scale = nn.Parameter(torch.empty(0))
        self._factor = 0.0  # of gradients
        self._factor_for: tuple[int, ...] = ()  # the size, processes and version of the zero point it is for

    def first_observer(self) -> Observer[Any]:
        """The observer that finds the first step size."""
        return StepSize()

    def set_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        """Start from the step size that the range represents."""
        top = CodeType("int", self.bit).high if bool((lo < 0).any()) else self.code.high
        scale = hi / top
        self.set_grid(
            torch.where(scale > 0, scale, SCALE_OF_ZEROS), torch.full_like(hi, self.code.high - top)
        )

    def gradient_scale(self, x: Tensor) -> float | Tensor:
        """1 / sqrt(N * qmax), N values per scale, qmax relative to the zero point."""
        if torch.compiler.is_compiling():
            shared = self.values_per_scale(x)
            if self.spec.symmetric and self.side == "W":  # with sizes that are fixed
                return 1 / math.sqrt(shared * self.code.high)
            return torch.rsqrt(shared * (self.code.high - self.zero_point[:1]))
        zero_point = self.zero_point
        now = (x.numel(), self.processes, zero_point._version)
        if self._factor_for != now:  # the zero point is read from the device once, not in every step
            top = self.code.high - (0.0 if self.spec.symmetric else float(zero_point[0]))
            self._factor, self._factor_for = 1 / math.sqrt(self.values_per_scale(x) * top), now
        return self._factor

    def set_grid(self, scale: Tensor, zero_point: Tensor) -> None:
        """Set the grid, and compute the gradient factor again when it is needed."""
        super().set_grid(scale, zero_point)
        self._factor_for = ()
