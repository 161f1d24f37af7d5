"""Does the captured graph of every task's model answer as the model does, bit for bit?

Each model is captured on its example inputs; graph and model then run on calibration batches of other sizes.
Run from the repository root: ``python -m benchmarks.tasks.capture_check``
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.tasks import TASKS, Call, Task, open_task
from benchmarks.tasks.progress import track
from sparsebit import SpecializationWarning, capture
from sparsebit.errors import SparsebitError

BATCHES = (3, 5)  # neither is the example's two


@dataclass(frozen=True, kw_only=True)
class Check:
    """One batch through model and graph."""

    task: str
    shapes: tuple[tuple[int, ...], ...]  # of the inputs
    equal: bool  # same structure, shapes, types and bits
    difference: float  # the largest, 0 where equal
    nodes: int
    capture_seconds: float
    warnings: tuple[str, ...]  # what capturing says it fixed


def check(task: Task) -> list[Check]:
    """Capture the task's model on its example and compare on every batch size of ``BATCHES``."""
    model, (args, kwargs) = task.model(), task.example()
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SpecializationWarning)
        graph = capture(model, args, kwargs)
    seconds = time.perf_counter() - start
    checks = []
    for call in batches(task):
        with torch.no_grad():
            expected, got = model(*call[0], **call[1]), graph(*call[0], **call[1])
        checks.append(
            Check(
                task=task.name,
                shapes=tuple(tuple(leaf.shape) for leaf in pytree.tree_leaves(call)),
                equal=identical(expected, got),
                difference=largest_difference(expected, got),
                nodes=len(graph.graph.nodes),
                capture_seconds=seconds,
                warnings=tuple(str(warning.message) for warning in caught),
            )
        )
    return checks


def batches(task: Task) -> Iterator[Call]:
    """One calibration batch of each size."""
    for size in BATCHES:
        yield next(task.calibration(size, size))


def identical(expected: object, got: object) -> bool:
    """Whether two outputs have the same structure, shapes, types and values, NaNs included."""
    left, left_spec = pytree.tree_flatten(expected)
    right, right_spec = pytree.tree_flatten(got)
    return left_spec == right_spec and all(map(_same, left, right))


def _same(left: object, right: object) -> bool:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return left == right
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


def largest_difference(expected: object, got: object) -> float:
    """The largest absolute difference of two outputs' tensors; infinite where their shapes differ."""
    largest = 0.0
    for left, right in zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=False):
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            if left.shape != right.shape:
                return float("inf")
            largest = max(largest, float((left.double() - right.double()).abs().max()))
    return largest


def show(checks: list[Check]) -> Table:
    table = Table(title="captured graph against eager")
    for heading in ("task", "inputs", "equal", "difference", "nodes", "capture s", "warnings"):
        table.add_column(heading)
    for row in checks:
        table.add_row(
            row.task,
            ", ".join("×".join(map(str, shape)) for shape in row.shapes),
            "yes" if row.equal else "NO",
            f"{row.difference:.1e}",
            str(row.nodes),
            f"{row.capture_seconds:.2f}",
            str(len(row.warnings)),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks.capture_check", description=__doc__)
    parser.add_argument("--task", action="append", choices=sorted(TASKS), help="repeatable; all if left out")
    parser.add_argument("--threads", type=int, help="torch threads")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        names = list(options.task or TASKS)
        checks = [row for name in track(names, "capturing") for row in check(open_task(name))]
    except SparsebitError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    console.print(show(checks))
    for text in sorted({text for row in checks for text in row.warnings}):
        console.print(text, markup=False)
    return 0 if all(row.equal for row in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
