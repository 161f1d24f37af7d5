"""The interface of methods that train a solved block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.methods.solver import SolvedMatrix


@runtime_checkable
class Tuner(Protocol):
    """A frozen dataclass of settings with one method.

    ``follow`` sets the target of the block: 1 the output of the float model, 0 that of the float block on the quantized
    model's inputs.
    """

    follow: float

    def tune(
        self, runs: BlockRuns, targets: Sequence[Tensor], solved: Sequence[SolvedMatrix]
    ) -> list[SolvedMatrix]:
        """Change the block's parameters, and return its matrices.

        Args:
            runs: the block, with the solved weights in its parameters, on the calibration data.
            targets: the outputs to reproduce, one for each batch.
            solved: its quantized matrices.
        """
        ...
