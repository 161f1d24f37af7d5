"""A solved block whose scales, rounding and norms can be learned without changing the block itself.

A weight is ``scale * clamp(round(u))`` with u the position of each number on its grid, counted in steps. Rounding
passes gradients straight through. Position and scale are learned separately: a changing scale does not change which
values are chosen, and the learning rate of the positions means the same for every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.methods.solver import SolvedMatrix
from sparsebit.numerics import CodeType


class LearnedMatrix:
    """One weight on its grid while it is learned, as rows of the C groups that share a scale.

    ``steps`` [C, group] are positions in steps of the scale, ``factor`` [C] multiplies the scales, ``zero_point`` [C].
    """

    def __init__(self, one: SolvedMatrix) -> None:
        grid = one.solved.grid
        assert grid is not None
        self.one, self._grid, self.code = one, grid, grid.code
        self.zero_point = grid.zero_point.clone()
        self.factor = torch.ones_like(grid.scale, dtype=torch.float32)
        positions = grid.positions(one.solved.latent).reshape(len(grid.scale), -1)
        # Numbers beyond the range start at its rim, so that they can come back.
        low, high = (end - self.zero_point[:, None] for end in (self.code.low - 0.49, self.code.high + 0.49))
        self.steps = torch.minimum(torch.maximum(positions, low), high)
        self._scale = grid.scale.float()
        kept = one.solved.kept
        self._kept = None if kept is None else kept.float()

    def weight(self) -> Tensor:
        """The current weight [out, in] on its grid, with scales rounded to values that files can store."""
        rows = _on_grid(
            self.steps, self.factor, self.zero_point, self._scale, self._grid.scale.dtype, self.code
        )
        numbers = rows.reshape(self.one.solved.weight.shape)
        return numbers if self._kept is None else numbers * self._kept

    def finish(self, remark: str) -> SolvedMatrix:
        """The learned weight, instead of the solved one."""
        with torch.no_grad():
            scale = (self._scale * self.factor).to(self._grid.scale.dtype)
            grid = replace(self._grid, scale=scale, zero_point=self.zero_point.round())
            solved, weight = self.one.solved, self.weight()
        learned = solved._replace(weight=weight, latent=weight, grid=grid.detach())
        return self.one._replace(solved=learned.noted(remark))


class _OnGrid(torch.autograd.Function):
    """``scale * factor * clamp(round(steps))``, with a straight-through gradient: a few launches instead of forty.

    Gradients: of a position the scale, inside the range; of a factor the scale times the chosen multiple; of a zero
    point minus the scale, at the ends of the range.
    """

    @staticmethod
    def forward(
        ctx: Any,
        steps: Tensor,
        factor: Tensor,
        zero_point: Tensor,
        base: Tensor,
        dtype: torch.dtype,
        code: CodeType,
    ) -> Tensor:
        scale = (base * factor).to(dtype).float()[:, None]
        levels = code.rounded(steps)
        if code.symmetric:
            levels.clamp_(code.low, code.high)
        else:
            point = zero_point.round()[:, None]
            levels.clamp_(code.low - point, code.high - point)
        levels = code.nearest(levels)
        ctx.save_for_backward(steps, levels, scale, base)
        return levels * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        steps, levels, scale, base = ctx.saved_tensors
        (grad,) = grads
        inside = (steps - levels).abs_() <= 0.5
        to_steps = (grad * scale).mul_(inside) if ctx.needs_input_grad[0] else None
        to_factor = (grad * levels).sum(1).mul_(base) if ctx.needs_input_grad[1] else None
        to_point = (grad * ~inside).sum(1).mul_(-scale[:, 0]) if ctx.needs_input_grad[2] else None
        return to_steps, to_factor, to_point, None, None, None


_on_grid = cast("Callable[..., Tensor]", _OnGrid.apply)


class LearnedBlock:
    """Runs the block with learned weights in place of its own, without changing the block."""

    def __init__(self, block: nn.Module, solved: Sequence[SolvedMatrix]) -> None:
        self._block = block
        self.matrices = [LearnedMatrix(one) for one in solved if one.solved.grid is not None]
        vectors = {name: one.detach().clone() for name, one in block.named_parameters() if one.dim() == 1}
        self._starts = {name: (one, one.abs().mean().clamp(min=1e-3)) for name, one in vectors.items()}
        # Norm weights and biases, as what is added to them, in multiples of their mean size.
        self.vectors = {name: torch.zeros_like(one) for name, one in vectors.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Every learned tensor by the name of the parameter that it replaces."""
        found = {}
        for name, added in self.vectors.items():
            start, size = self._starts[name]
            found[name] = start + added * size
        stacked: dict[str, list[Tensor]] = {}
        for learned in self.matrices:
            matrix = learned.one.matrix
            weight = learned.weight().T if matrix.transposed else learned.weight()
            if matrix.expert is None:
                found[matrix.name] = weight
            else:
                if matrix.name not in stacked:
                    stacked[matrix.name] = list(self._block.get_parameter(matrix.name).data)
                stacked[matrix.name][matrix.expert] = weight
        return found | {name: torch.stack(parts) for name, parts in stacked.items()}

    def run(self, call: BlockCall, hidden: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """The hidden states after the block."""

        def called(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(self._block, tensors, args, kwargs)

        return call.run(called, hidden)

    @torch.no_grad()
    def mean_error(self, runs: BlockRuns, targets: Sequence[Tensor]) -> float:
        """The current error of the block over all data."""
        tensors = self.tensors()
        batches = zip(runs.calls, runs.hidden, targets, strict=True)
        errors = [token_error(self.run(call, x, tensors), target) for call, x, target in batches]
        return float(torch.stack(errors).mean())

    def keep_better(self, solved: Sequence[SolvedMatrix], before: float, after: float) -> list[SolvedMatrix]:
        """Write the learned weights to the block if the error fell, else keep the solved ones. NaN counts as worse."""
        if not after < before:
            said = f"tuning did not reduce the error ({before:.3g} to {after:.3g}) and was undone"
            return [one._replace(solved=one.solved.noted(said)) for one in solved]
        self.write()
        remark = f"tuned: error of the block {before:.3g} to {after:.3g}"
        by_matrix = {one.one.matrix: one.finish(remark) for one in self.matrices}
        return [by_matrix.get(one.matrix, one) for one in solved]

    def write(self) -> None:
        """Write the learned tensors to the block's own parameters."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                self._block.get_parameter(name).copy_(tensor)


def unlearned(solved: Sequence[SolvedMatrix]) -> list[SolvedMatrix]:
    """The matrices of a block in which the settings leave nothing to learn, such as the rounding of an nf4 grid."""
    return [one._replace(solved=one.solved.noted("tuning had nothing to learn")) for one in solved]


def token_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean over tokens of ``|output - target|² / |target|²``: the error as the next block's norm sees it.

    Without the division, a few tokens with huge hidden states, such as the first one, would dominate.

    Example:
        >>> token_error(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]))
        tensor(0.2500)
    """
    lost = (output.float() - target.float()).square().sum(-1)
    return (lost / target.float().square().sum(-1).clamp(min=1e-30)).mean()


def learn(
    learned: LearnedBlock,
    runs: BlockRuns,
    targets: Sequence[Tensor],
    solved: Sequence[SolvedMatrix],
    steps: int,
    seed: int,
    move: Callable[[int], None],
) -> list[SolvedMatrix]:
    """Run ``steps`` mini-batches, calling ``move`` after each backward pass; then keep the better weights.

    The mini-batches are the batches of the calibration data, in an order that ``seed`` sets.
    """
    before = learned.mean_error(runs, targets)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for step in range(steps):
        order = order or torch.randperm(len(runs.calls), generator=generator).tolist()
        index = order.pop()
        with torch.enable_grad():
            output = learned.run(runs.calls[index], runs.hidden[index], learned.tensors())
            error = token_error(output, targets[index])
        if error.requires_grad:  # unless no token of the batch reached a learned weight
            error.backward()
        move(step)
    return learned.keep_better(solved, before, learned.mean_error(runs, targets))
