"""Statistics of the inputs of a weight: second moments, and the difference from the float model's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.numerics.finite import is_finite

TILE = 256  # rows of the second moments that are computed at once, from the diagonal on
PART = 1024  # tokens at once: more would not stay in the processor's caches


@dataclass
class InputStatistics:
    """Sums over all tokens that reached a weight.

    With x the input after blocks that are already compressed and f the same input in the float model, ``gram`` holds
    the sum of x xᵀ and ``shift`` that of (f - x) xᵀ; ``magnitude`` is the sum of |x|, ``largest`` the largest |x|. The
    second moments are symmetric: ``mean_gram`` reads the upper triangle, and most of the lower one is not computed.
    """

    gram: Tensor  # [in, in]
    shift: Tensor | None  # [in, in]
    magnitude: Tensor | None  # [in]
    largest: Tensor | None  # [in]
    tokens: int = 0

    @classmethod
    def empty(
        cls, size: int, *, shift: bool = False, sizes: bool = False, device: torch.device | str = "cpu"
    ) -> InputStatistics:
        """Empty statistics; ``sizes`` also measures ``magnitude`` and ``largest``."""
        square = torch.zeros(size, size, dtype=torch.float32, device=device)
        row = square.new_zeros(size)
        shifts = torch.zeros_like(square) if shift else None
        return cls(square, shifts, row if sizes else None, row.clone() if sizes else None)

    def update(self, inputs: Tensor, floats: Tensor | None = None, *, half: bool = False) -> None:
        """Add tokens [..., in], and the same tokens in the float model; ``half`` computes products in bfloat16."""
        size = inputs.shape[-1]
        parts = inputs.reshape(-1, size).split(PART)
        beside: Sequence[Tensor | None] = (
            [None] * len(parts) if floats is None else floats.reshape(-1, size).split(PART)
        )
        for x, f in zip(parts, beside, strict=True):
            self._add(x.float(), None if f is None else f.float(), half)

    def _add(self, x: Tensor, f: Tensor | None, half: bool) -> None:
        # Products in bfloat16 are rounded to it. For the part common to all tokens, that error would leave H without
        # an inverse. So the mean is removed first, and its contribution is added in float32.
        mean = x.mean(0) if half else x.new_zeros(x.shape[1])
        centred = (x - mean).bfloat16() if half else x
        for start in range(0, x.shape[1], TILE):
            rows = slice(start, start + TILE)
            self.gram[rows, start:] += (centred[:, rows].T @ centred[:, start:]).float()
        self.gram.addr_(mean, mean, alpha=len(x))
        if self.shift is not None and f is not None:
            moved = f - x
            self.shift += (moved.to(centred.dtype).T @ centred).float()
            self.shift.addr_(moved.sum(0), mean)
        if self.magnitude is not None and self.largest is not None:
            size = x.abs()
            self.magnitude += size.sum(0)
            torch.maximum(self.largest, size.amax(0), out=self.largest)
        self.tokens += len(x)

    def require_finite(self, name: str) -> None:
        """Raise an error if inputs of the weight ``name`` are not finite, or their squares are not."""
        squares = self.gram.diagonal()  # the other moments are no larger
        if is_finite(squares) and (self.shift is None or is_finite(self.shift)):
            return
        raise SparsebitError(
            "the model computes NaN or infinite numbers from the calibration data",
            where=f"the inputs of {name}",
            hint="call the float model on the data: it gives NaN there too, or numbers of 1e19 and more",
        )

    def mean_gram(self) -> Tensor:
        """The second moments, [in, in]."""
        upper = self.gram.triu() / max(self.tokens, 1)
        return upper + upper.triu(1).T

    def mean_shift(self) -> Tensor | None:
        """Mean of (f - x) xᵀ, [in, in]."""
        return None if self.shift is None else self.shift / max(self.tokens, 1)
