"""One quantized tensor: its range, the range of its grid, what is clipped, and what rounding costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sparsebit.analysis.profiling.agreement import Agreement
from sparsebit.numerics.layout import spread
from sparsebit.quantization import Quantizer

LONG_TAIL = 20.0  # times the standard deviation
MUCH_CLIPPED = 1e-3


@dataclass(frozen=True, kw_only=True)
class TensorError:
    """The input of one quantizer, and the error of its output."""

    name: str
    side: str
    codes: str
    bits: int
    lo: float
    """Smallest and largest number seen, in the float model."""
    hi: float
    grid_lo: float
    """Smallest and largest number the grid can hold, over all its scales."""
    grid_hi: float
    clipped: float
    """Fraction of the numbers outside the range of their grid."""
    std: float
    agreement: Agreement

    @property
    def tail(self) -> float:
        """The largest magnitude in standard deviations."""
        return max(abs(self.lo), abs(self.hi)) / self.std if self.std > 0 else 0.0

    def why(self) -> str:
        """The cause of its error, in words."""
        if self.clipped >= MUCH_CLIPPED:
            return f"{self.clipped:.1%} of it lies outside its grid, {self.grid_lo:.3g} to {self.grid_hi:.3g}"
        if self.tail >= LONG_TAIL:
            return f"its range is {self.tail:.0f} standard deviations, so most values fall on a few points of its grid"
        return f"{self.codes} has too few steps between {self.grid_lo:.3g} and {self.grid_hi:.3g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        plain = ("name", "side", "codes", "bits", "lo", "hi", "grid_lo", "grid_hi", "clipped", "std")
        return {name: getattr(self, name) for name in plain} | self.agreement.to_dict()


@dataclass
class TensorSums:
    """Accumulates statistics of one quantizer's input; ``finish`` returns the result."""

    quantizer: Quantizer
    lo: float = math.inf
    hi: float = -math.inf
    grid_lo: float = math.inf
    grid_hi: float = -math.inf
    clipped: int = 0
    total: float = 0.0
    agreement: Agreement = field(default_factory=Agreement)

    def add(self, x: Tensor) -> None:
        """Add one batch of the tensor, from the float model."""
        if not x.numel():
            return
        x = self.quantizer.prepare(x.detach().float())
        low, high = grid_ends(self.quantizer, x)
        first, last = grid_ends(self.quantizer, x, beyond=0.0)
        self.lo, self.hi = min(self.lo, x.min().item()), max(self.hi, x.max().item())
        self.grid_lo, self.grid_hi = (
            min(self.grid_lo, first.min().item()),
            max(self.grid_hi, last.max().item()),
        )
        self.clipped += int(((x < low) | (x > high)).sum())
        self.total += x.double().sum().item()
        self.agreement += Agreement.of(x, self.quantizer.snap(x))

    def finish(self) -> TensorError | None:
        """The result; None if the quantizer received no data."""
        count = self.agreement.count
        if not count:
            return None
        variance = self.agreement.signal / count - (self.total / count) ** 2
        return TensorError(
            name=self.quantizer.name,
            side=self.quantizer.side,
            codes=self.quantizer.spec.codes,
            bits=self.quantizer.bit,
            lo=self.lo,
            hi=self.hi,
            grid_lo=self.grid_lo,
            grid_hi=self.grid_hi,
            clipped=self.clipped / count,
            std=math.sqrt(max(variance, 0.0)),
            agreement=self.agreement,
        )


def grid_ends(quantizer: Quantizer, x: Tensor, *, beyond: float = 0.5) -> tuple[Tensor, Tensor]:
    """The numbers beyond which values of ``x`` are clipped, shaped to broadcast against it.

    What lies up to half a step ``beyond`` the last code still rounds to it.
    """
    grid = quantizer.grid(x)
    low, high = grid.ends(beyond=beyond if grid.code.is_integer else 0.0)
    if low.numel() == 1:
        return low, high
    return spread(low, x.shape, grid.layout), spread(high, x.shape, grid.layout)
