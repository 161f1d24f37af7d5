"""One block: measure the inputs of its weights, solve them stage by stage, and leave it with numbers on their grids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sparsebit.llm.blocks.calls import BlockCall
from sparsebit.llm.blocks.stages import Group, Stage, find_stages
from sparsebit.llm.methods.solver import SolvedMatrix, Solver, WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.llm.weights.uses import Matrix, Use, WatchWeights

SpecOf = Callable[[str], WeightSpec | None]


class _Reached(Exception):
    """The group that is measured has been reached; the rest of the block need not run."""


@torch.no_grad()
def solve_block(
    block: nn.Module,
    calls: Sequence[BlockCall],
    hidden: Sequence[Tensor],
    floats: Sequence[Tensor] | None,
    spec_of: SpecOf,
    solver: Solver,
) -> tuple[list[SolvedMatrix], list[Tensor] | None]:
    """Solve every weight of a block, writing the result into its parameters.

    Args:
        block: with parameters of its own, which are overwritten.
        calls: how the block is called, one for each batch.
        hidden: what it is called on, behind blocks that are compressed already; one tensor for each batch.
        floats: the same in the float model; None where the method does not ask for it.
        spec_of: the spec of a parameter by its name inside the block; None leaves it in float.
        solver: the method.

    Returns:
        what became of each matrix, and the hidden states behind the block in the float model.
    """
    parameters = {name: parameter for name, parameter in block.named_parameters() if spec_of(name)}
    stages = find_stages(block, calls[0], hidden[0], parameters)
    leaders = [group.leader for stage in stages for group in stage.groups if group.reaches_all]
    float_inputs: list[dict[Matrix, Tensor]] | None = None
    float_outputs: list[Tensor] | None = None
    if floats is not None:
        float_inputs, float_outputs = [], []
        for call, batch in zip(calls, floats, strict=True):
            seen: dict[Matrix, Tensor] = {}
            with WatchWeights(parameters, partial(_keep_first, seen)):
                float_outputs.append(call.run(block, batch))
            float_inputs.append({leader: seen[leader] for leader in leaders})
    done: list[SolvedMatrix] = []
    for stage in stages:
        statistics = _measure(block, calls, hidden, parameters, stage, float_inputs)
        for group in stage.groups:
            found = statistics.get(group.leader)
            for matrix in group.matrices:
                weight = stored(parameters, matrix)
                spec = spec_of(matrix.name)
                assert spec is not None
                solved = solver.solve(weight.clone(), found, spec)
                weight.copy_(solved.weight)
                done.append(SolvedMatrix(matrix, solved, 0 if found is None else found.tokens))
    return done, float_outputs


def solve_without_data(block: nn.Module, spec_of: SpecOf, solver: Solver) -> list[SolvedMatrix]:
    """Solve every weight of a block that was never run, stacked experts included."""
    done = []
    for name, parameter in block.named_parameters():
        spec = spec_of(name)
        if spec is None:
            continue
        holder = block.get_submodule(name.rpartition(".")[0])
        # GPT-2's Conv1D and some stacks of experts store [in, out]; the latter say so.
        transposed = type(holder).__name__ == "Conv1D" or bool(getattr(holder, "is_transposed", False))
        for expert in range(len(parameter)) if parameter.dim() == 3 else [None]:
            matrix = Matrix(name, expert, transposed)
            weight = stored({name: parameter}, matrix)
            solved = solver.solve(weight.clone(), None, spec)
            weight.copy_(solved.weight)
            done.append(SolvedMatrix(matrix, solved, 0))
    return done


def _keep_first(seen: dict[Matrix, Tensor], use: Use) -> None:
    seen.setdefault(use.matrix, use.inputs)


def stored(parameters: Mapping[str, Tensor], matrix: Matrix) -> Tensor:
    """The matrix [out, in] as a view of the parameter that holds it."""
    parameter = parameters[matrix.name].data
    view = parameter if matrix.expert is None else parameter[matrix.expert]
    return view.T if matrix.transposed else view


def _measure(
    block: nn.Module,
    calls: Sequence[BlockCall],
    hidden: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    stage: Stage,
    float_inputs: Sequence[Mapping[Matrix, Tensor]] | None,
) -> dict[Matrix, InputStatistics]:
    """Statistics by the leader of each group of one stage."""
    leaders: dict[Matrix, Group] = {group.leader: group for group in stage.groups}
    found: dict[Matrix, InputStatistics] = {}
    for number, (call, batch) in enumerate(zip(calls, hidden, strict=True)):

        def see(use: Use, number: int = number) -> None:
            group = leaders.get(use.matrix)
            if group is None or not use.inputs.numel():
                return
            floats = float_inputs[number].get(use.matrix) if float_inputs and group.reaches_all else None
            if use.matrix not in found:
                size = use.inputs.shape[-1]
                found[use.matrix] = InputStatistics.empty(
                    size, cross=floats is not None, device=use.inputs.device
                )
            found[use.matrix].update(use.inputs, floats)
            if stage.single:
                raise _Reached

        try:
            with WatchWeights(parameters, see):
                call.run(block, batch)
        except _Reached:
            pass
    return found
