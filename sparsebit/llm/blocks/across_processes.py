"""Calibration batches divided over processes: each runs its own batches and shares the results.

Every process holds all hidden states and all weights, so later steps are the same everywhere. Only two things are
divided: running the blocks, and the statistics of their inputs, which are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from sparsebit.llm.weights.statistics import InputStatistics
from sparsebit.llm.weights.uses import Matrix
from sparsebit.processes import (
    gather_values,
    is_distributed,
    max_tensors,
    rank,
    share_tensors,
    sum_tensors,
    world_size,
)


def own_batches(count: int) -> range:
    """The numbers of the batches that this process runs.

    Example:
        >>> list(own_batches(3))
        [0, 1, 2]
    """
    return range(rank(), count, world_size())


def share_runs(
    count: int, run: Callable[[int], Sequence[Tensor]], width: int = 1
) -> Iterator[Sequence[Tensor]]:
    """The ``width`` results of ``run(number)`` for every batch in order, each from the process that owns it.

    Example:
        >>> [int(one) for (one,) in share_runs(3, lambda number: [torch.tensor(number * 2)])]
        [0, 2, 4]
    """
    for first in range(0, count, world_size()):
        number = first + rank()
        own = [one.contiguous() for one in run(number)] if number < count else []
        shared = share_tensors({number * width + place: one for place, one in enumerate(own)})
        while found := list(islice(shared, width)):
            yield found


def merge_statistics(found: dict[Matrix, InputStatistics]) -> dict[Matrix, InputStatistics]:
    """The merged statistics of all processes; on some of them, no token may have reached a matrix."""
    if not is_distributed():
        return found
    shapes = {matrix: {name: tensor.shape for name, tensor in _tensors(one)} for matrix, one in found.items()}
    device = next((one.gram.device for one in found.values()), torch.device("cpu"))
    everywhere = {matrix: sizes for part in gather_values(shapes) for matrix, sizes in part.items()}
    merged = {}
    for matrix, sizes in sorted(everywhere.items(), key=lambda item: str(item[0])):
        own = found.get(matrix)
        if own is None:
            names = [field.name for field in fields(InputStatistics) if field.name != "tokens"]
            absent: dict[str, Any] = dict.fromkeys(names)
            zeros = {name: torch.zeros(size, device=device) for name, size in sizes.items()}
            own = InputStatistics(**{**absent, **zeros})
        tokens = torch.tensor([own.tokens], device=device)
        sum_tensors([tokens, *(tensor for name, tensor in _tensors(own) if name != "largest")])
        max_tensors([] if own.largest is None else [own.largest])
        own.tokens = int(tokens)
        merged[matrix] = own
    return merged


def _tensors(statistics: InputStatistics) -> Iterator[tuple[str, Tensor]]:
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if isinstance(value, Tensor):
            yield field.name, value
