"""Products of a block that its next run need not compute again.

The weights of a block are solved one stage after the other, and each is measured with the stages before it solved, so
the block runs once for each of them. All that such a run computes before it reaches the weights it measures is final:
it depends on solved weights only. So the results of products and attention are kept in the order in which they are
made, and the next run gets them back. Together the runs then cost one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparsebit.llm.blocks.spill import MOST_BYTES
from sparsebit.llm.weights.uses import PRODUCTS

_KEPT = PRODUCTS | {F.scaled_dot_product_attention}


class Replay:
    """What earlier runs of one block computed, for each batch, up to ``limit`` bytes in all."""

    def __init__(self, batches: int, limit: int = MOST_BYTES) -> None:
        self._kept: list[list[tuple[Tensor, int]]] = [[] for _ in range(batches)]
        self._left = limit

    def run(self, batch: int) -> ReplayedRun:
        """A mode in which the block is run on one batch."""
        return ReplayedRun(self, self._kept[batch])

    def take(self, size: int) -> bool:
        """Whether there is still room for so many bytes, which then count as taken."""
        self._left -= size
        return self._left >= 0


class ReplayedRun(TorchFunctionMode):
    """While active, results that were kept are returned, and further ones are kept until ``stop`` is called."""

    def __init__(self, replay: Replay, kept: list[tuple[Tensor, int]]) -> None:
        super().__init__()
        self._replay, self._kept = replay, kept
        self._place, self._final = 0, True

    def stop(self) -> None:
        """What follows depends on weights that are not solved yet: it is not kept."""
        self._final = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _KEPT:
            return func(*args, **(kwargs or {}))
        place, self._place = self._place, self._place + 1
        known = place < len(self._kept)
        if known:
            kept, version = self._kept[place]
            if kept._version == version:  # torch counts what is written into a tensor
                return kept
        result = func(*args, **(kwargs or {}))
        if known:
            self._kept[place] = result, result._version
        elif self._final and place == len(self._kept) and self._replay.take(result.nbytes):
            self._kept.append((result, result._version))
        return result
