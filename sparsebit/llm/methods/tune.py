"""Tuning of a solved block: its scales, its norms and its rounding learn to give what the float block gives.

The first phase of EfficientQAT (Chen et al., arXiv 2407.11062), after any solver and not only after rounding to
nearest. Adam on mini-batches of the calibration data; the result is kept only where the block's error fell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sparsebit.config.llm.methods import TuneSettings
from sparsebit.llm.blocks.calls import BlockCall
from sparsebit.llm.methods.learned_block import LearnedBlock, relative_error
from sparsebit.llm.methods.solver import SolvedMatrix
from sparsebit.llm.methods.tuner import TUNERS


@TUNERS.register("tune")
class Tune(TuneSettings):
    """The method; its settings are documented where they are declared."""

    def tune(
        self,
        block: nn.Module,
        calls: Sequence[BlockCall],
        hidden: Sequence[Tensor],
        targets: Sequence[Tensor],
        solved: Sequence[SolvedMatrix],
    ) -> list[SolvedMatrix]:
        """Learn, and write what was learned into the block."""
        learned = LearnedBlock(block, solved)
        before = mean_error(learned, calls, hidden, targets)
        groups = [
            {"params": [one.requires_grad_() for one in found], "lr": rate}
            for rate, found in self._rates(learned)
            if rate and found
        ]
        optimizer = torch.optim.Adam(groups)
        decay = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / self.steps)
        )
        generator = torch.Generator().manual_seed(self.seed)
        order: list[int] = []
        for _ in range(self.steps):
            order = order or torch.randperm(len(calls), generator=generator).tolist()
            index = order.pop()
            with torch.enable_grad():
                output = learned.run(calls[index], hidden[index], learned.tensors())
                error = relative_error(output, targets[index])
                error.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            decay.step()
        after = mean_error(learned, calls, hidden, targets)
        return keep_better(learned, solved, before, after)

    def _rates(self, learned: LearnedBlock) -> Iterator[tuple[float, list[Tensor]]]:
        """What is learned, by how fast: few large groups, because each costs a launch."""
        rounded = [one for one in learned.matrices if one.code.is_integer]
        yield self.scale_lr, [one.factor for one in learned.matrices]
        yield self.norm_lr, list(learned.vectors.values())
        yield self.weight_lr, [one.steps for one in rounded]
        if self.zero_points:
            yield self.weight_lr, [one.zero_point for one in rounded if not one.code.symmetric]


def mean_error(
    learned: LearnedBlock, calls: Sequence[BlockCall], hidden: Sequence[Tensor], targets: Sequence[Tensor]
) -> float:
    """The error of the block over all of the data."""
    return float(torch.stack(list(learned.errors(calls, hidden, targets))).mean())


def keep_better(
    learned: LearnedBlock, solved: Sequence[SolvedMatrix], before: float, after: float
) -> list[SolvedMatrix]:
    """What was learned, written into the block, where the error fell; else what was solved. NaN counts as worse."""
    if not after < before:
        said = f"tuning did not help ({before:.3g} to {after:.3g}) and was undone"
        return [one._replace(solved=one.solved._replace(remark=said)) for one in solved]
    learned.write()
    remark = f"tuned: error of the block {before:.3g} to {after:.3g}"
    by_matrix = {one.one.matrix: one.finish(remark) for one in learned.matrices}
    return [by_matrix.get(one.matrix, one) for one in solved]
