"""One block: measure the inputs of its weights and solve the weights stage by stage, in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsebit.errors import located
from sparsebit.llm.blocks.across_processes import share_runs
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.measure import measure_inputs, stored
from sparsebit.llm.blocks.replay import Replay
from sparsebit.llm.blocks.spill import MOST_BYTES, spilled_each
from sparsebit.llm.blocks.stages import Stage, find_stages
from sparsebit.llm.methods.solver import (
    UNREACHED,
    Solved,
    SolvedMatrix,
    Solver,
    SpecOf,
    WeightSpec,
    output_loss,
    solve_weight,
)
from sparsebit.llm.weights.uses import Matrix, Use, WatchWeights, stores_transposed
from sparsebit.quantization.calibration.spill_list import SpillList


class SolvedBlock(NamedTuple):
    """A block whose weights are solved.

    Attributes:
        matrices: the solution of each matrix.
        floats: what the block returns in the float model, by leaf; None if it was not requested.
        replay: results of the solved block for each batch, up to its last weights.
    """

    matrices: list[SolvedMatrix]
    floats: tuple[Sequence[Tensor], ...] | None
    replay: Replay


@torch.no_grad()
def solve_block(runs: BlockRuns, floats: BlockRuns | None, spec_of: SpecOf, solver: Solver) -> SolvedBlock:
    """Solve every weight of a block, writing the result into its parameters.

    Args:
        runs: the block on the output of the compressed blocks before it; its parameters are overwritten.
        floats: the block as the float model calls it; None if the method does not need them.
        spec_of: the spec of a parameter by its name inside the block; None leaves it in float.
        solver: the method.
    """
    count = len(runs.calls)
    parameters = {name: parameter for name, parameter in runs.block.named_parameters() if spec_of(name)}
    stages = find_stages(replace(runs.first_sequence(), half=runs.half), parameters)
    leaders = [[group.leader for group in stage.groups if group.reaches_all] for stage in stages]
    float_inputs: list[Any] = []  # by stage, so that each is freed once it has been read
    float_outputs: Any = None
    if floats is not None:
        float_inputs = [SpillList(MOST_BYTES // len(stages)) for _ in stages]

        def run_float(number: int) -> Sequence[Tensor]:
            seen: dict[Matrix, Tensor] = {}
            with floats.products(), WatchWeights(parameters, partial(_keep_first, seen)):
                output = floats.outputs(number)
            for kept, of_stage in zip(float_inputs, leaders, strict=True):
                kept.append({leader: seen[leader] for leader in of_stage if leader in seen})
            return output

        width = len(floats.leaves)
        float_outputs = spilled_each(share_runs(count, run_float, width), width, floats.limit)
    done: list[SolvedMatrix] = []
    replay = Replay(runs.block, count)
    for stage in stages:
        known = float_inputs.pop(0) if float_inputs else None
        statistics = measure_inputs(runs, parameters, stage, known, replay)
        del known
        for group in stage.groups:
            found = statistics.get(group.leader)
            gram = found.mean_gram() if found is not None and found.tokens else None
            for spec, matrices in _by_spec(group.matrices, spec_of).items():
                views = [stored(parameters, matrix) for matrix in matrices]
                # Weights with the same input are solved as the rows of one matrix: their columns are the same.
                with located(_full_name(runs, matrices[0])):
                    together = solve_weight(solver, torch.cat(views), found, spec)
                if gram is None:
                    together = together.noted(UNREACHED)
                for matrix, view, solved in zip(matrices, views, split_rows(together, views), strict=True):
                    loss = output_loss(view.float(), solved.weight, gram)
                    view.copy_(solved.weight)
                    done.append(SolvedMatrix(matrix, solved, 0 if found is None else found.tokens, loss))
    return SolvedBlock(done, float_outputs, replay)


@torch.no_grad()
def measure_losses(
    runs: BlockRuns, originals: Mapping[str, Tensor], solved: Sequence[SolvedMatrix]
) -> list[SolvedMatrix]:
    """The matrices with the losses that they have now, after a tuner changed them; ``originals`` by parameter."""
    parameters = {name: runs.block.get_parameter(name) for name in originals}
    stages = find_stages(replace(runs.first_sequence(), half=runs.half), parameters)
    groups = [group for stage in stages for group in stage.groups]
    statistics = measure_inputs(runs, parameters, Stage(groups), None)
    reached = {one: statistics.get(group.leader) for group in groups for one in group.matrices}
    measured = []
    for one in solved:
        found = reached.get(one.matrix)
        gram = found.mean_gram() if found is not None and found.tokens else None
        loss = output_loss(stored(originals, one.matrix).float(), one.solved.weight, gram)
        measured.append(one._replace(loss=loss))
    return measured


@torch.no_grad()
def run_block(runs: BlockRuns, replay: Replay | None = None) -> tuple[Sequence[Tensor], ...]:
    """What the model reads of a block's results, by leaf and batch; results in ``replay`` are reused."""
    replay = Replay(runs.block, len(runs.calls), limit=0) if replay is None else replay
    width = len(runs.leaves)

    def run(number: int) -> Sequence[Tensor]:
        with runs.products(), replay.run(number):
            return runs.outputs(number)

    return spilled_each(share_runs(len(runs.calls), run, width), width, runs.limit)


def _by_spec(matrices: Sequence[Matrix], spec_of: SpecOf) -> dict[WeightSpec, list[Matrix]]:
    found: dict[WeightSpec, list[Matrix]] = {}
    for matrix in matrices:
        spec = spec_of(matrix.name)
        assert spec is not None
        found.setdefault(spec, []).append(matrix)
    return found


def split_rows(solved: Solved, weights: Sequence[Tensor]) -> Iterator[Solved]:
    """Split a solved weight into the weights whose rows it joined."""
    start, per_row = 0, 0 if solved.grid is None else len(solved.grid.scale) // len(solved.weight)
    for weight in weights:
        rows = slice(start, start + len(weight))
        grids = slice(rows.start * per_row, rows.stop * per_row)
        grid = solved.grid
        if grid is not None:
            grid = replace(grid, scale=grid.scale[grids].clone(), zero_point=grid.zero_point[grids].clone())
        kept = None if solved.kept is None else solved.kept[rows]
        yield Solved(solved.weight[rows], grid, solved.latent[rows], solved.remark, kept)
        start = rows.stop


def solve_without_data(runs: BlockRuns, spec_of: SpecOf, solver: Solver) -> list[SolvedMatrix]:
    """Solve every weight of a block without running it, including stacked experts."""
    done = []
    for name, parameter in runs.block.named_parameters():
        spec = spec_of(name)
        if spec is None:
            continue
        transposed = stores_transposed(runs.block.get_submodule(name.rpartition(".")[0]))
        for expert in range(len(parameter)) if parameter.dim() == 3 else [None]:
            matrix = Matrix(name, expert, transposed)
            weight = stored({name: parameter}, matrix)
            with located(_full_name(runs, matrix)):
                solved = solve_weight(solver, weight.clone(), None, spec)
            loss = output_loss(weight.float(), solved.weight, None)
            weight.copy_(solved.weight)
            done.append(SolvedMatrix(matrix, solved, 0, loss))
    return done


def _full_name(runs: BlockRuns, matrix: Matrix) -> str:
    return f"{runs.name}.{matrix}".lstrip(".")


def _keep_first(seen: dict[Matrix, Tensor], use: Use) -> None:
    seen.setdefault(use.matrix, use.inputs)
