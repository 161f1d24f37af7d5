"""What every method that acts on a solved block looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.methods.solver import SolvedMatrix
from sparsebit.registry import Registry


@runtime_checkable
class Tuner(Protocol):
    """A frozen dataclass of settings with one method.

    ``follow`` says what the block should give: 1 the output of the float model, 0 that of the float block on the inputs
    that really come.
    """

    follow: float

    def tune(
        self, runs: BlockRuns, targets: Sequence[Tensor], solved: Sequence[SolvedMatrix]
    ) -> list[SolvedMatrix]:
        """Change the block's parameters, and return what its matrices became.

        Args:
            runs: the block, with the solved weights in its parameters, on the calibration data.
            targets: what it should give, one for each batch.
            solved: its quantized matrices.
        """
        ...


TUNERS: Registry[type[Tuner]] = Registry("tuning method")
