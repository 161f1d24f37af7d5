"""Which weights are kept, by their scores: exact counts, N of every M, and blocks. True is kept.

Ties are broken by position: of equal scores, the first are removed, so that counts are exact even in a tensor of equal
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError


class ScoreError(SparsebitError):
    """Scores that cannot be sorted."""


def count_removed(total: int, ratio: float) -> int:
    """How many of ``total`` are removed: the fraction rounded down, without binary rounding errors.

    Example:
        >>> count_removed(64, 0.5), count_removed(100, 0.29), count_removed(3, 0.5)
        (32, 29, 1)
    """
    return min(total, math.floor(round(total * ratio, 6)))


def keep_highest(scores: Tensor, removed: int) -> Tensor:
    """A mask of the shape of ``scores`` in which exactly ``removed`` are False: the lowest, and first among equals.

    Example:
        >>> keep_highest(torch.tensor([2.0, 1.0, 1.0, 1.0]), 2)
        tensor([ True, False, False,  True])
    """
    flat = without_nan(scores).flatten()
    if removed <= 0:
        return torch.ones_like(scores, dtype=torch.bool)
    if removed >= flat.numel():
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = flat.kthvalue(removed).values
    kept = flat >= threshold
    equal = (flat == threshold).nonzero().flatten()
    kept[equal[: removed - int((flat < threshold).sum())]] = False
    return kept.view(scores.shape)


def keep_highest_together(scores: Mapping[str, Tensor], removed: int) -> dict[str, Tensor]:
    """As ``keep_highest``, over several tensors at once."""
    sizes = [score.numel() for score in scores.values()]
    if not sizes:
        return {}
    kept = keep_highest(torch.cat([score.flatten().cpu() for score in scores.values()]), removed)
    parts = kept.split(sizes)
    return {
        name: part.view(score.shape).to(score.device)
        for (name, score), part in zip(scores.items(), parts, strict=True)
    }


def keep_n_of_m(scores: Tensor, n: int, m: int, axis: int) -> Tensor:
    """Of every ``m`` consecutive scores along ``axis``, keep the ``n`` highest; a shorter last run keeps up to ``n``.

    Example:
        >>> keep_n_of_m(torch.tensor([[1.0, 4.0, 3.0, 2.0, 9.0]]), 2, 4, axis=1)
        tensor([[False,  True,  True, False,  True]])
    """
    rows = without_nan(scores).movedim(axis, -1)
    size = rows.shape[-1]
    padded = torch.nn.functional.pad(rows, (0, -size % m), value=-math.inf)
    runs = padded.reshape(*rows.shape[:-1], -1, m)
    # from the right, so that the first of equals is removed
    best = runs.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :n]
    kept = torch.zeros_like(runs, dtype=torch.bool).scatter_(-1, m - 1 - best, True)
    return kept.reshape(padded.shape)[..., :size].movedim(-1, axis).contiguous()


class MatrixBlocks(NamedTuple):
    """A tensor divided into blocks of outputs by inputs.

    The tensor is seen as a matrix of [outputs, inputs · kernel], as convolutions are run; the blocks at the right and
    lower edge may be incomplete.
    """

    shape: tuple[int, ...]  # of the tensor
    axes: tuple[int, int]  # its (output, input) axes
    block: tuple[int, int]

    def to_rows(self, tensor: Tensor) -> Tensor:
        """[blocks, elements], with zeros where a block is incomplete."""
        matrix = self._matrix(tensor)
        rows, columns = self.block
        padded = torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % columns, 0, -matrix.shape[0] % rows))
        cut = padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
        return cut.transpose(1, 2).reshape(-1, rows * columns)

    def sizes(self) -> Tensor:
        """How many elements each block has: [blocks]."""
        return self.to_rows(torch.ones(self.shape)).sum(1)

    def to_mask(self, kept: Tensor) -> Tensor:
        """Expand one flag per block to the tensor."""
        outputs, inputs = self._matrix(torch.empty(self.shape, device="meta")).shape
        down, right = -(-outputs // self.block[0]), -(-inputs // self.block[1])
        grid = kept.reshape(down, 1, right, 1).expand(down, self.block[0], right, self.block[1])
        matrix = grid.reshape(down * self.block[0], right * self.block[1])[:outputs, :inputs]
        moved = [self.shape[axis] for axis in self._order()]
        back = sorted(range(len(moved)), key=self._order().__getitem__)
        return matrix.reshape(moved).permute(back).contiguous()

    def _order(self) -> list[int]:
        return [*self.axes, *(axis for axis in range(len(self.shape)) if axis not in self.axes)]

    def _matrix(self, tensor: Tensor) -> Tensor:
        return tensor.permute(self._order()).reshape(self.shape[self.axes[0]], -1)


def without_nan(scores: Tensor, where: str | None = None) -> Tensor:
    """The scores; an error if they contain NaN."""
    if bool(scores.isnan().any()):
        raise ScoreError(
            "some scores are NaN",
            where=where,
            got=f"{int(scores.isnan().sum())} NaN among {scores.numel()}",
            hint="look at the weights, the data and the loss; a float16 model may have overflowed",
        )
    return scores
