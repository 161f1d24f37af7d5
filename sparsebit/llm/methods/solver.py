"""The interface of methods that quantize one weight: from weight and statistics to numbers on a grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparsebit.errors import PlugInError, SparsebitError, is_plug_in, running_plug_in
from sparsebit.llm.language_model import Made
from sparsebit.llm.methods.masks import Sparsity
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.finite import is_finite
from sparsebit.numerics.packed import PackedTensor


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """The spec of one weight [out, in]: the type of its quantized values, and how many of them share a scale.

    ``group_size`` None means one scale per output channel. The scale is rounded to ``scale_dtype`` before anything is
    solved with it, so that engines read exactly the solved weights. ``code`` None leaves the kept weights in float.
    """

    code: CodeType | None = field(default_factory=lambda: CodeType("full", 4))
    group_size: int | None = 32
    scale_dtype: torch.dtype = torch.float16
    sparsity: Sparsity | None = None

    def layout(self, shape: torch.Size | tuple[int, ...]) -> Layout:
        """Which elements of a weight of this shape share a scale; refuses groups that do not divide it."""
        size = self.group_size
        if size is None or size >= shape[1]:
            return Layout(kind="channel", axes=(0,))
        if shape[1] % size:
            raise SparsebitError(
                f"{shape[1]} input channels cannot be divided into groups of {size}",
                expected="a group size that divides the number of input channels",
                hint="choose another W.GROUP_SIZE, or leave the layer out with SPECIFIC",
            )
        return Layout(kind="group", axes=(0,), input_axis=1, group_size=size)


UNREACHED = "no token reached it"
SpecOf = Callable[[str], WeightSpec | None]  # by the name of a parameter; None where it stays as it is


class Solved(NamedTuple):
    """A weight on its grid."""

    weight: Tensor  # [out, in], every number on the grid
    grid: Grid | None  # None where the weight stays in float
    latent: Tensor  # [out, in], the numbers that were rounded: they say which way each was close to
    remark: str = ""
    kept: Tensor | None = None  # [out, in], where weights may be other than zero; None where all may

    def noted(self, remark: str) -> Solved:
        """The same with a further remark."""
        return self._replace(remark="; ".join(filter(None, (self.remark, remark))))

    def made(self, name: str, loss: float, tokens: int, *, transposed: bool = False) -> Made:
        """The packed matrix of this name, with all that is remarked on it."""
        held = None if self.grid is None else PackedTensor.of(self.weight, self.grid)
        zeros = "" if self.kept is None else f"{1 - float(self.kept.float().mean()):.0%} of it is zero"
        return Made(name, held, loss, tokens, self.noted(zeros).remark, transposed)


class SolvedMatrix(NamedTuple):
    """One matrix of a block, and its solution."""

    matrix: Matrix
    solved: Solved
    tokens: int
    loss: float  # energy of the error in the layer's outputs, relative to the energy of the outputs


@runtime_checkable
class Solver(Protocol):
    """A frozen dataclass of settings with one method."""

    needs_data: bool
    follow: float  # above 0 where statistics of the float model's inputs are used

    def solve(self, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec) -> Solved:
        """The weight [out, in] on a grid of this spec."""
        ...


def solve_weight(
    solver: Solver, weight: Tensor, statistics: InputStatistics | None, spec: WeightSpec
) -> Solved:
    """What a solver makes of a weight; an error if a user's solver makes anything else than the spec asks for.

    The library's own are tested instead: the check takes a third of the time of rounding to nearest.
    """
    who = f"the method {type(solver).__name__}"
    with running_plug_in(f"{who} cannot solve this weight", solver):
        solved = solver.solve(weight, statistics, spec)
        if is_plug_in(solver):
            require_solved(who, solved, weight, spec)
    return solved


def require_solved(who: str, solved: Any, weight: Tensor, spec: WeightSpec) -> None:
    """Raise unless a solution of this weight is complete, finite, and exactly what its spec asks for.

    Losses are computed from the solution, and files hold its quantized values: both must be the same numbers.
    """
    if not isinstance(solved, Solved):
        raise PlugInError(f"{who} did not return a solution", expected="Solved", got=f"{solved!r:.80}")
    parts = {"weight": solved.weight, "latent": solved.latent}
    for name, one in (parts if solved.kept is None else parts | {"kept": solved.kept}).items():
        if not isinstance(one, Tensor) or one.shape != weight.shape:
            got = f"shape {list(one.shape)}" if isinstance(one, Tensor) else f"{one!r:.80}"
            raise PlugInError(
                f"{who} returned a wrong {name}", expected=f"shape {list(weight.shape)}", got=got
            )
    grid, kept = solved.grid, solved.kept
    wrong = {
        f"a weight of {weight.dtype}": solved.weight.dtype == weight.dtype,
        "finite weights": is_finite(solved.weight),
        f"a grid of {spec.code or 'None'}": (None if grid is None else grid.code) == spec.code,
        "a remark that is a text": isinstance(solved.remark, str | None),
        "zeros where it keeps no weights": kept is None or not solved.weight[kept == 0].any(),
    }
    if grid is not None:
        rounded = grid.scale.to(spec.scale_dtype).to(grid.scale.dtype)
        wrong[f"scales in {spec.scale_dtype}"] = torch.equal(rounded, grid.scale)
        wrong["weights on the grid"] = torch.equal(grid.snap(solved.weight), solved.weight)
    if expected := next((what for what, holds in wrong.items() if not holds), None):
        raise PlugInError(f"{who} returned a solution that cannot be stored as it is", expected=expected)


def output_loss(weight: Tensor, solved: Tensor, gram: Tensor | None) -> float:
    """``|| (W - Q) X ||² / || W X ||²`` from the second moments of X; of the weights themselves without them.

    Example:
        >>> output_loss(torch.ones(1, 2), torch.tensor([[1.0, 0.0]]), torch.eye(2))
        0.5
    """
    error = weight - solved
    if gram is None:
        return float(error.square().sum() / weight.square().sum().clamp(min=1e-30))
    spent = ((error @ gram) * error).sum()
    return float(spent / ((weight @ gram) * weight).sum().clamp(min=1e-30))
