"""One dimension of one tensor argument: which sizes a captured graph is right for, and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sparsebit.errors import CaptureError


@dataclass(frozen=True)
class InputSize:
    """A dimension is *free* if the graph was shown to follow its size, otherwise *fixed* at the example's size."""

    argument: str
    dim: int
    least: int
    most: int | None  # None: no limit
    why: str
    source: str | None = None  # the line of the model that fixed it

    @classmethod
    def fixed(cls, argument: str, dim: int, extent: int, why: str, source: str | None = None) -> InputSize:
        """A dimension that has to be as it was in the example."""
        return cls(argument, dim, extent, extent, why, source)

    @property
    def free(self) -> bool:
        """Whether a call may have a different size from the example."""
        return self.least != self.most

    def require(self, tensor: Tensor) -> None:
        """Raise unless the tensor has a size that the graph is right for."""
        extent = tensor.size(self.dim)
        if extent >= self.least and (self.most is None or extent <= self.most):
            return
        limits = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
        raise CaptureError(
            f"argument {self.argument!r} has size {extent} in dimension {self.dim}, which this graph was not captured "
            f"for: {self.why}",
            where=self.source,
            expected=f"size {limits if self.free else self.least} in dimension {self.dim}",
            got=f"a tensor of shape {tuple(tensor.shape)}",
            hint="capture the model again with example inputs of this size, or with dynamic="
            f"{{{self.argument!r}: [{self.dim}]}} to check that dimension at once",
        )

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        kind = "free" if self.free else f"fixed at {self.least}"
        return f"{self.argument}, dimension {self.dim}: {kind}: {self.why}{where}"
