"""The equations of rounding by reconstruction, over tensors alone.

AdaRound (Nagel et al., arXiv 2004.10568, eq. 22-25): every weight lies h(V) of the way between the codes below and
above it, and a regularizer drives h to 0 or 1 while the result of the layer is preserved. BRECQ (Li et al., arXiv
2102.05426) does that for the result of a complete block, QDrop (Wei et al., arXiv 2203.05740) while activations are
quantized at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsebit.numerics import Grid
from sparsebit.numerics.finite import is_finite
from sparsebit.quantization.quantizers.adaround import inverse_rectified_sigmoid, rectified_sigmoid


@dataclass
class SoftWeights:
    """All weights of a block as one vector, so that a step runs each operator once, for any number of weights.

    ``v`` is trained. ``floor``, ``scale``, ``low`` and ``high`` are the code below each weight, the size of a
    step, and the codes it is clipped to, all counted from the zero point.
    """

    v: Tensor
    floor: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor
    shapes: list[torch.Size]

    @classmethod
    def of(cls, weights: list[tuple[Tensor, Grid]]) -> SoftWeights:
        """Create it from weights and their grids."""
        floors, fractions, scales, lows, highs = [], [], [], [], []
        for weight, grid in weights:
            scale, zero_point = grid.spread(weight.shape)
            steps = grid.positions(weight)
            floors.append(steps.floor().flatten())
            fractions.append((steps - steps.floor()).flatten())
            scales.append(scale.expand_as(weight).flatten())
            lows.append((grid.code.low - zero_point).expand_as(weight).flatten())
            highs.append((grid.code.high - zero_point).expand_as(weight).flatten())
        v = inverse_rectified_sigmoid(torch.cat(fractions).clamp(1e-4, 1 - 1e-4)).requires_grad_()
        floor, scale, low, high = (torch.cat(part) for part in (floors, scales, lows, highs))
        return cls(v, floor, scale, low, high, [weight.shape for weight, *_ in weights])

    def soft(self) -> tuple[list[Tensor], Tensor]:
        """The soft weights during training, and h(V)."""
        h = rectified_sigmoid(self.v)
        codes = torch.minimum(torch.maximum(self.floor + h, self.low), self.high)
        return self._cut(codes * self.scale), h

    def up(self) -> list[Tensor]:
        """Which weights are finally rounded up."""
        return self._cut(self.v.detach() >= 0)

    def _cut(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def undecided(h: Tensor, beta: float | Tensor) -> Tensor:
    """The regularizer: sum of 1 - abs(2 h - 1) ** beta, which is 0 where every h is 0 or 1 (eq. 24).

    Example:
        >>> undecided(torch.tensor([0.0, 0.5, 1.0]), 2.0)
        tensor(1.)
    """
    return (1 - (2 * h - 1).abs().pow(beta)).sum()


def beta_at(progress: float, warmup: float) -> float | None:
    """The exponent after a fraction of the steps: none during the warm-up, then decreasing linearly from 20 to 2.

    Example:
        >>> beta_at(0.1, 0.2), beta_at(0.2, 0.2), beta_at(1.0, 0.2)
        (None, 20.0, 2.0)
    """
    if progress < warmup:
        return None
    return 20.0 - 18.0 * (progress - warmup) / (1 - warmup)


class Unit(NamedTuple):
    """The variance of a result over its finite numbers, and whether it has infinite ones, as masks and scores do."""

    variance: Tensor
    infinite: bool = False


def reconstruction_error(results: list[Tensor], wanted: list[Tensor], units: list[Unit]) -> Tensor:
    """Squared error, summed over channels and averaged over everything else, of all results of a block.

    Each is relative to the variance of the result: the results of blocks differ by orders of magnitude, and the
    regularizer does not. Infinite numbers of the float model have no error.
    """
    errors = []
    for result, exact, unit in zip(results, wanted, units, strict=True):
        # Results that depend on no weight are ignored.
        if isinstance(result, Tensor) and (result.requires_grad or not torch.is_grad_enabled()):
            if unit.infinite:
                known = exact.isfinite()
                result, exact = torch.where(known, result, 0.0), torch.where(known, exact, 0.0)
            channels = result.shape[1] if result.dim() > 1 else 1
            errors.append(F.mse_loss(result, exact) * channels / unit.variance)
    assert errors, "no weight contributes to any of the outputs"
    return torch.stack(errors).sum()


def find_units(rows: list[list[Any]]) -> list[Unit]:
    """The unit of every floating-point tensor of a row, over all rows; its variance is 1 for a constant tensor.

    Example:
        >>> find_units([[torch.tensor([-3.0, 3.0])], [torch.tensor([1.0, 1.0])]])
        [Unit(variance=tensor(4.5000), infinite=False)]
    """
    found = []
    for values in zip(*rows, strict=True):
        tensors = [v.detach().float() for v in values if _has_values(v)]
        infinite = not all(map(is_finite, tensors))
        if infinite:
            tensors = [v[v.isfinite()] for v in tensors]
        spread = [v.var(correction=0) for v in tensors if v.numel()]
        mean = torch.stack(spread).mean() if spread else torch.ones(())
        variance = torch.where(mean.isfinite() & (mean > 0), mean, torch.ones_like(mean))
        found.append(Unit(variance, infinite))
    return found


def _has_values(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


def drop(
    rounded: Tensor,
    exact: Tensor,
    probability: float,
    generator: torch.Generator | None,
    *,
    infinite: bool = False,
) -> Tensor:
    """Quantized values, each replaced by its float value with a probability (QDrop, eq. 8).

    The probability is rounded to a multiple of 1/256: one random byte decides for each value. ``infinite`` says that
    there are infinite numbers, as in a mask.
    """
    bytes_below = round(256 * probability)
    if not bytes_below:
        return rounded
    words = torch.empty(-(-rounded.numel() // 8), dtype=torch.int64, device=rounded.device)
    words.random_(-(2**63), None, generator=generator)
    chances = words.view(torch.uint8)[: rounded.numel()].view(rounded.shape).to(rounded.dtype)
    dropped = chances.lt_(bytes_below)  # as 1.0 and 0.0, at which lerp is exact, and much faster than where
    if infinite:  # lerp between infinite numbers is NaN
        return torch.where(dropped.bool(), exact, rounded)
    return torch.lerp(rounded, exact, dropped)
