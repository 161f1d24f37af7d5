"""Measure the float models beside their published figures: ``python -m benchmarks.tasks --task cifar10_resnet20``."""

from __future__ import annotations

import argparse
import sys

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.tasks import TASKS, Result, Task, open_task
from sparsebit.errors import SparsebitError


def show(results: list[tuple[Task, Result]], limit: int | None) -> Table:
    table = Table(title="float models" if limit is None else f"float models, first {limit} samples only")
    for heading in ("task", "metric"):
        table.add_column(heading)
    for heading in ("measured", "published", "wall s", "CPU s"):
        table.add_column(heading, justify="right")
    for task, result in results:
        for name, value in result.metrics.items():
            own = name == task.metric
            table.add_row(
                task.name if own else "",
                name,
                written(name, value),
                written(name, task.published) if own else "",
                f"{result.seconds:.1f}" if own else "",
                f"{result.cpu_seconds:.1f}" if own else "",
            )
    return table


def written(metric: str, value: float) -> str:
    return f"{value:.2f}" if metric.endswith("%") else f"{value:.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--task", action="append", choices=sorted(TASKS), help="repeatable; all if left out")
    parser.add_argument("--limit", type=int, help="only the first so many samples of the test set")
    parser.add_argument("--threads", type=int, help="torch threads")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = []
    try:
        for name in options.task or TASKS:
            task = open_task(name)
            with Console(stderr=True).status(f"{name}: loading the model"):
                model = task.model()
            results.append((task, task.evaluate(model, options.limit)))
    except SparsebitError as error:
        print(error, file=sys.stderr)
        return 2
    Console().print(show(results, options.limit))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
