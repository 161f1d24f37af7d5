"""Hidden states of the calibration data, in memory while they are few and on disk when they are many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from sparsebit.quantization.calibration.spill_list import SpillList

MOST_BYTES = 2**30  # of one list in memory


def spilled(batches: Iterable[Tensor]) -> Sequence[Tensor]:
    """The tensors as a list that keeps up to ``MOST_BYTES`` of them in memory and the rest in a temporary folder.

    Example:
        >>> import torch
        >>> [int(one) for one in spilled(torch.tensor(n) for n in range(3))]
        [0, 1, 2]
    """
    found: Any = SpillList(MOST_BYTES)
    for batch in batches:
        found.append(batch)
    return found  # type: ignore[no-any-return]


def spilled_each(
    batches: Iterable[Sequence[Tensor]], width: int, limit: int = MOST_BYTES
) -> tuple[Sequence[Tensor], ...]:
    """Such a list for each of the ``width`` tensors that every batch has, with ``limit`` bytes of them all in memory.

    Example:
        >>> import torch
        >>> [len(one) for one in spilled_each(([torch.tensor(n), torch.tensor(n)] for n in range(3)), 2)]
        [3, 3]
    """
    found: Any = [SpillList(limit // width) for _ in range(width)]
    for batch in batches:
        for kept, tensor in zip(found, batch, strict=True):
            kept.append(tensor)
    return tuple(found)
