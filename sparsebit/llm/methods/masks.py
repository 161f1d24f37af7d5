"""Which weights are kept: a fraction of each row, or N of every M consecutive weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError


class Sparsity(NamedTuple):
    """``kept`` of every ``size`` weights of a row stay; if ``size`` is None, the fraction ``ratio`` becomes zero."""

    ratio: float
    kept: int = 0
    size: int | None = None

    @classmethod
    def parse(cls, asked: float | str) -> Sparsity | None:
        """The sparsity of a config value; None for 0.

        Example:
            >>> Sparsity.parse("2:4"), Sparsity.parse(0.0)
            (Sparsity(ratio=0.5, kept=2, size=4), None)
        """
        if isinstance(asked, str):
            kept, size = map(int, asked.split(":"))
            return cls(1 - kept / size, kept, size)
        return cls(asked) if asked else None

    def require_fits(self, columns: int) -> None:
        """Raise an error if a row of this many weights cannot be divided into groups of ``size``."""
        if self.size is not None and columns % self.size:
            raise SparsebitError(
                f"{columns} input channels cannot be divided into groups of {self.size}",
                expected="N:M sparsity with an M that divides the number of input channels",
                hint="choose another W.SPARSITY, or leave the layer out with SPECIFIC",
            )


def keep_largest(scores: Tensor, sparsity: Sparsity) -> Tensor:
    """The mask of kept weights, [out, in]: the highest scores of each row, or of every ``size`` consecutive ones.

    Example:
        >>> keep_largest(torch.tensor([[1.0, 4.0, 3.0, 2.0]]), Sparsity(0.5, 2, 4))
        tensor([[False,  True,  True, False]])
    """
    rows = scores
    if sparsity.size is not None:
        sparsity.require_fits(scores.shape[1])
        rows = scores.reshape(-1, sparsity.size)
    kept = sparsity.kept if sparsity.size is not None else round(rows.shape[1] * (1 - sparsity.ratio))
    chosen = rows.topk(kept, dim=1).indices
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, chosen, True).reshape(scores.shape)
