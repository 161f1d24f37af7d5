"""The order in which the weights of a block are solved, and the groups that read the same input.

Weights that read one tensor (query, key and value) share its statistics. Each group is solved on the actual outputs of
the groups before it, which other tools call "true sequential". Experts of one kind form one stage, because none reads
the output of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.weights.uses import Matrix, Use, WatchWeights


@dataclass
class MatrixGroup:
    """Matrices that read the same tensor; the first one represents them."""

    matrices: list[Matrix]
    reaches_all: bool = True  # whether every token of the batch reaches it, unlike an expert

    @property
    def leader(self) -> Matrix:
        """The matrix whose inputs are measured."""
        return self.matrices[0]


@dataclass
class Stage:
    """Groups that are measured in one run of the block."""

    groups: list[MatrixGroup] = field(default_factory=list)

    @property
    def single(self) -> bool:
        """Whether the run can stop as soon as the one group is reached."""
        return len(self.groups) == 1 and self.groups[0].reaches_all


@torch.no_grad()
def find_stages(runs: BlockRuns, parameters: Mapping[str, Tensor]) -> list[Stage]:
    """The stages of a block in order, from one run; experts that no token reached join the others of their kind."""
    uses: list[Use] = []
    with runs.products(), WatchWeights(parameters, uses.append):
        runs.run()
    tokens = runs.hidden[0].numel() // runs.hidden[0].shape[-1]
    groups: list[MatrixGroup] = []
    by_input: dict[int, MatrixGroup] = {}
    seen: set[Matrix] = set()
    for use in uses:  # the inputs are kept in `uses`, so their ids are not reused
        if use.matrix in seen:
            continue
        seen.add(use.matrix)
        group = by_input.get(id(use.inputs))
        if group is None:
            reaches_all = use.inputs.numel() // use.inputs.shape[-1] == tokens and use.matrix.expert is None
            group = by_input[id(use.inputs)] = MatrixGroup([], reaches_all)
            groups.append(group)
        group.matrices.append(use.matrix)
    stages: dict[str, Stage] = {}
    for group in groups:
        # Numbers in a name mean experts only if tokens are distributed: "fc1" and "fc2" are two layers.
        key = group.leader.name if group.reaches_all else _kind(group.leader)
        stages.setdefault(key, Stage()).groups.append(group)
    for stage in stages.values():
        _add_unreached(stage, parameters, seen)
    return list(stages.values())


def _kind(matrix: Matrix) -> str:
    """The name without its numbers, which is the same for all experts."""
    return re.sub(r"\d+", "#", matrix.name)


def _add_unreached(stage: Stage, parameters: Mapping[str, Tensor], seen: set[Matrix]) -> None:
    """Experts of the same kind as those of the stage that no token of this batch reached."""
    if stage.single:
        return
    for kind, transposed in {(_kind(m), m.transposed) for group in stage.groups for m in group.matrices}:
        for name, parameter in parameters.items():
            if re.sub(r"\d+", "#", name) != kind:
                continue
            indices = range(len(parameter)) if parameter.dim() == 3 else [None]
            for index in indices:
                matrix = Matrix(name, index, transposed)
                if matrix not in seen:
                    seen.add(matrix)
                    stage.groups.append(MatrixGroup([matrix], reaches_all=False))
