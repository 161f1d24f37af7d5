"""Statistics of the inputs of a block's weights, from running it on the calibration data."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from torch import Tensor

from sparsebit.llm.blocks.across_processes import merge_statistics, own_batches
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.replay import Replay, ReplayedRun
from sparsebit.llm.blocks.stages import MatrixGroup, Stage
from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.llm.weights.uses import Enough, Matrix, Use, WatchWeights


def stored(parameters: Mapping[str, Tensor], matrix: Matrix) -> Tensor:
    """The matrix [out, in] as a view of the parameter that holds it."""
    parameter = parameters[matrix.name].data
    view = parameter if matrix.expert is None else parameter[matrix.expert]
    return view.T if matrix.transposed else view


def measure_inputs(
    runs: BlockRuns,
    parameters: Mapping[str, Tensor],
    stage: Stage,
    float_inputs: Sequence[Mapping[Matrix, Tensor]] | None,
    replay: Replay | None = None,
    *,
    sizes: bool = False,
) -> dict[Matrix, InputStatistics]:
    """Statistics by the leader of each group of one stage.

    With ``replay``, results from before the stage are kept for the next run of the block, so stages must come in order,
    each after the ones before it are solved. Each of several processes runs its own batches, the ones in
    ``float_inputs``. ``sizes`` also measures the magnitudes of the inputs, which solvers do not use.
    """
    replay = Replay(runs.block, len(runs.calls), limit=0) if replay is None else replay
    leaders: dict[Matrix, MatrixGroup] = {group.leader: group for group in stage.groups}
    found: dict[Matrix, InputStatistics] = {}
    for place, number in enumerate(own_batches(len(runs.calls))):
        run = replay.run(number)

        tokens = runs.hidden[number].numel() // runs.hidden[number].shape[-1]

        def see(use: Use, place: int = place, run: ReplayedRun = run, tokens: int = tokens) -> None:
            if use.matrix not in replay.solved:  # a batch may not reach the stage, but a later one
                run.stop()
            group = leaders.get(use.matrix)
            if group is None or not use.inputs.numel():
                return
            floats = float_inputs[place].get(use.matrix) if float_inputs else None
            # An expert may have other tokens in the float model, unless it has them all in both.
            if floats is not None and not _rows(floats) == _rows(use.inputs) == tokens:
                floats = None
            if use.matrix not in found:
                found[use.matrix] = InputStatistics.empty(
                    use.inputs.shape[-1], shift=floats is not None, sizes=sizes, device=use.inputs.device
                )
            found[use.matrix].update(use.inputs, floats, half=runs.half)
            if stage.single:
                raise Enough

        with contextlib.suppress(Enough), runs.products(), run, WatchWeights(parameters, see):
            runs.run(number)
    replay.solved.update(matrix for group in stage.groups for matrix in group.matrices)
    merged = merge_statistics(found)
    for matrix, statistics in merged.items():
        statistics.require_finite(f"{runs.name}.{matrix}".lstrip("."))
    return merged


def _rows(inputs: Tensor) -> int:
    return inputs.numel() // inputs.shape[-1]
