"""A solved block whose scales, rounding and norms can be learned, without a change to the block itself.

A weight is ``scale * clamp(round(u))`` with u the position of each number on its grid, counted in steps. Rounding
passes gradients straight through. Position and scale are learned apart: a scale that moves does not change which
values are chosen, and the learning rate of the positions means the same for every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.llm.blocks.calls import BlockCall
from sparsebit.llm.methods.solver import SolvedMatrix
from sparsebit.numerics import CodeType, Grid


def straight_through(value: Tensor, learned: Tensor) -> Tensor:
    """``value``, with the gradient of ``learned``."""
    return learned + (value - learned).detach()


class LearnedMatrix:
    """One weight on its grid while it is learned.

    ``steps`` [out, in] are positions in steps of the scale, ``factor`` [C] multiplies the scales, ``zero_point`` [C].
    """

    def __init__(self, one: SolvedMatrix) -> None:
        grid = one.solved.grid
        assert grid is not None
        self.one, self._grid, self.code = one, grid, grid.code
        _, zero_point = grid.spread(one.solved.weight.shape)
        # Numbers beyond the range start at its rim, so that they can come back.
        self.steps = nearest_inside(grid.positions(one.solved.latent), zero_point, grid.code, rim=0.49)
        self.factor = torch.ones_like(grid.scale, dtype=torch.float32)
        self.zero_point = grid.zero_point.clone()

    def grid(self) -> Grid:
        """The grid as learned so far, its scales rounded to what files hold."""
        scale = self._grid.scale.float() * self.factor
        stored = straight_through(scale.to(self._grid.scale.dtype).float(), scale)
        whole = straight_through(self.zero_point.round(), self.zero_point)
        return replace(self._grid, scale=stored, zero_point=whole)

    def weight(self) -> Tensor:
        """The numbers [out, in] as learned so far, every one on the grid."""
        grid = self.grid()
        scale, zero_point = grid.spread(self.steps.shape)
        code = grid.code
        with torch.no_grad():
            level = code.round_(self.steps.clone())
            level = code.nearest(level.clamp_(min=code.low - zero_point).clamp_(max=code.high - zero_point))
        rounded = straight_through(level, nearest_inside(self.steps, zero_point, code, rim=0.5))
        numbers = rounded * scale
        kept = self.one.solved.kept
        return numbers if kept is None else numbers * kept

    def finish(self, remark: str) -> SolvedMatrix:
        """What was learned, in place of what was solved."""
        with torch.no_grad():
            grid = self.grid()
            grid = replace(grid.detach(), scale=grid.scale.detach().to(self._grid.scale.dtype))
            solved = self.one.solved
            said = "; ".join(filter(None, (solved.remark, remark)))
            weight = self.weight().detach()
            return self.one._replace(
                solved=solved._replace(weight=weight, latent=weight, grid=grid, remark=said)
            )


def nearest_inside(steps: Tensor, zero_point: Tensor, code: CodeType, *, rim: float) -> Tensor:
    """Positions clamped to what the type can hold, and ``rim`` steps more on either side."""
    return torch.minimum(torch.maximum(steps, code.low - zero_point - rim), code.high - zero_point + rim)


class LearnedBlock:
    """The block with its learned weights in place of its own, called without a change to the block."""

    def __init__(self, block: nn.Module, solved: Sequence[SolvedMatrix]) -> None:
        self._block = block
        self.matrices = [LearnedMatrix(one) for one in solved if one.solved.grid is not None]
        # Norm weights and biases, as what is added to them, in multiples of their mean size.
        self.vectors = {
            name: torch.zeros_like(parameter)
            for name, parameter in block.named_parameters()
            if parameter.dim() == 1
        }

    def tensors(self) -> dict[str, Tensor]:
        """Every learned tensor by the name of the parameter it stands for."""
        found = {}
        for name, added in self.vectors.items():
            start = self._block.get_parameter(name).detach()
            found[name] = start + added * start.abs().mean().clamp(min=1e-3)
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
        """The hidden states behind the block."""

        def called(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(self._block, tensors, args, kwargs)

        return call.run(called, hidden)

    @torch.no_grad()
    def mean_error(
        self, calls: Sequence[BlockCall], hidden: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> float:
        """The error of the block over all of the data, as learned so far."""
        tensors = self.tensors()
        batches = zip(calls, hidden, targets, strict=True)
        errors = [relative_error(self.run(call, x, tensors), target) for call, x, target in batches]
        return float(torch.stack(errors).mean())

    def keep_better(self, solved: Sequence[SolvedMatrix], before: float, after: float) -> list[SolvedMatrix]:
        """What was learned, written into the block, where the error fell; else what was solved. NaN counts as worse."""
        if not after < before:
            said = f"tuning did not help ({before:.3g} to {after:.3g}) and was undone"
            return [one._replace(solved=one.solved._replace(remark=said)) for one in solved]
        self.write()
        remark = f"tuned: error of the block {before:.3g} to {after:.3g}"
        by_matrix = {one.one.matrix: one.finish(remark) for one in self.matrices}
        return [by_matrix.get(one.matrix, one) for one in solved]

    def write(self) -> None:
        """Put what was learned into the block's own parameters."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                self._block.get_parameter(name).copy_(tensor)


def relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean over tokens of ``|output - target|² / |target|²``: what the next block's norm makes of the error.

    Without the division a few tokens with huge hidden states, such as the first one, would be all that counts.

    Example:
        >>> relative_error(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]))
        tensor(0.2500)
    """
    lost = (output.float() - target.float()).square().sum(-1)
    return (lost / target.float().square().sum(-1).clamp(min=1e-30)).mean()


def learn(
    learned: LearnedBlock,
    calls: Sequence[BlockCall],
    hidden: Sequence[Tensor],
    targets: Sequence[Tensor],
    solved: Sequence[SolvedMatrix],
    steps: int,
    seed: int,
    move: Callable[[int], None],
) -> list[SolvedMatrix]:
    """Run ``steps`` mini-batches, calling ``move`` after each backward pass; then keep what is better.

    The mini-batches are the batches of the calibration data, in an order that ``seed`` sets.
    """
    before = learned.mean_error(calls, hidden, targets)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for step in range(steps):
        order = order or torch.randperm(len(calls), generator=generator).tolist()
        index = order.pop()
        with torch.enable_grad():
            output = learned.run(calls[index], hidden[index], learned.tensors())
            relative_error(output, targets[index]).backward()  # type: ignore[no-untyped-call]
        move(step)
    return learned.keep_better(solved, before, learned.mean_error(calls, hidden, targets))
