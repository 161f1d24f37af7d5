"""Signed rounding: which neighbour on the grid each weight goes to is learned with the signs of gradients.

Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent" (arXiv 2309.05516), known as AutoRound. Each step
moves every weight by the same small amount, so that no layer is learned faster than another, and no weight leaves the
range of its rounding. The steps shrink to zero; the result is kept only if the error of the block fell.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsebit.config.llm.methods import SignRoundSettings
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.methods.learned_block import LearnedBlock, learn, unlearned
from sparsebit.llm.methods.registration import METHODS
from sparsebit.llm.methods.solver import SolvedMatrix


@METHODS.register("signround")
class SignRound(SignRoundSettings):
    """The method; its settings are documented where they are declared."""

    def tune(
        self, runs: BlockRuns, targets: Sequence[Tensor], solved: Sequence[SolvedMatrix]
    ) -> list[SolvedMatrix]:
        """Learn, and write what was learned into the block."""
        learned = LearnedBlock(runs.block, solved)
        reaches = [(one.steps, self.reach) for one in learned.matrices if one.code.is_integer]
        reaches += [(one.factor, self.scale_reach) for one in learned.matrices if self.scale_reach]
        if not reaches:
            return unlearned(solved)
        bounds = [(tensor, tensor.clone(), reach) for tensor, reach in reaches]
        for tensor, _, _ in bounds:
            tensor.requires_grad_()

        @torch.no_grad()
        def move(step: int) -> None:
            rate = 2 * (1 - step / self.steps) / self.steps  # all steps together cross the reach once
            for tensor, start, reach in bounds:
                if tensor.grad is None:  # of an expert that no token of the batch reached
                    continue
                tensor.sub_(tensor.grad.sign_(), alpha=rate * reach)
                tensor.copy_(torch.minimum(torch.maximum(tensor, start - reach), start + reach))
                tensor.grad = None

        return learn(learned, runs, targets, solved, self.steps, self.seed, move)
