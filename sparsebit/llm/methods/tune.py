"""Tuning of a solved block: its scales, norms and rounding are trained to reproduce the output of the float block.

The first phase of EfficientQAT (Chen et al., arXiv 2407.11062), after any solver and not only after rounding to
nearest. Adam on mini-batches of the calibration data; the result is kept only if the block's error fell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sparsebit.config.llm.methods import TuneSettings
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.methods.learned_block import LearnedBlock, learn, unlearned
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import SolvedMatrix


@METHODS.register("tune")
class Tune(TuneSettings):
    """The method; its settings are documented where they are declared."""

    def tune(
        self, runs: BlockRuns, targets: Sequence[Tensor], solved: Sequence[SolvedMatrix]
    ) -> list[SolvedMatrix]:
        """Learn, and write what was learned into the block."""
        learned = LearnedBlock(runs.block, solved)
        groups = [
            {"params": [one.requires_grad_() for one in found], "lr": rate}
            for rate, found in self._rates(learned)
            if rate and found
        ]
        if not groups:
            return unlearned(solved)
        optimizer = torch.optim.Adam(groups, fused=True)  # one launch for each group
        decay = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / self.steps)
        )

        def move(step: int) -> None:
            optimizer.step()
            optimizer.zero_grad()
            decay.step()

        return learn(learned, runs, targets, solved, self.steps, self.seed, move)

    def _rates(self, learned: LearnedBlock) -> Iterator[tuple[float, list[Tensor]]]:
        """The learned tensors by learning rate: few large groups, because each costs a launch."""
        rounded = [one for one in learned.matrices if one.code.is_integer]
        yield self.scale_lr, [one.factor for one in learned.matrices]
        yield self.norm_lr, list(learned.vectors.values())
        yield self.weight_lr, [one.steps for one in rounded]
        if self.zero_points:
            yield self.weight_lr, [one.zero_point for one in rounded if not one.code.symmetric]
