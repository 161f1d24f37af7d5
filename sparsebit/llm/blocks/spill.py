"""Hidden states of the calibration data, in memory while they are few and on disk when they are many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
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
    found: Any = None
    for batch in batches:
        if found is None:
            found = SpillList(_most_bytes(batch))
        found.append(batch)
    return SpillList(MOST_BYTES) if found is None else found  # type: ignore[no-any-return]


def _most_bytes(batch: Tensor) -> int:
    """On a GPU a list may take an eighth of what is free: reading it back from disk would leave the GPU waiting."""
    if not batch.is_cuda:
        return MOST_BYTES
    return max(MOST_BYTES, torch.cuda.mem_get_info(batch.device)[0] // 8)
