"""Half of ResNet-56's multiply-accumulates removed: what is left of its accuracy, by criterion?

Three figures for each criterion, all on the 10,000 test images of CIFAR-10:
- one-shot: channels removed, nothing else touched;
- with the statistics of batch norm taken anew from 2,000 training images (no weight changes);
- for the criteria named with ``--finetune``: after a short fine-tune on 10,000 training images.

Published, with all 50,000 training images and hundreds of epochs: 92.17 (HRank) to 93.77 (DepGraph).

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.pruning.resnet56.run [--device cuda]``
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.environment import describe
from benchmarks.pruning.resnet56.finetune import finetune, refresh_statistics
from benchmarks.tasks.catalog import open_task
from benchmarks.tasks.cifar10 import normalize
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import read_array
from benchmarks.tasks.task import Task
from sparsebit.sparse import SPARSERS, SparseModel

SEED = 0
SCORING = {"hrank": 64}  # images to score with; ranks take a decomposition a map
SCORING_IMAGES, SCORING_BATCH, STATISTICS_IMAGES = 1024, 32, 2000


def training_data(task: Task, device: str) -> tuple[Tensor, Tensor]:
    path = find_file(task.folder, "cifar10_train10k.npz")
    return normalize(read_array(path, "images")).to(device), read_array(path, "labels").long().to(device)


def accuracy(task: Task, model: nn.Module, device: str, limit: int | None) -> float:
    model = model.to(device).eval()
    return round(task.evaluate(lambda images: model(images.to(device)), limit).metric, 2)


def prune(
    model: nn.Module, criterion: str, options: argparse.Namespace, data: tuple[Tensor, Tensor]
) -> SparseModel:
    config = {
        "SPARSER": {
            "TYPE": "structured",
            "STRATEGY": criterion,
            "RATIO": options.ratio,
            "TARGET": "macs",
            "SCOPE": options.scope,
            "ROUND_TO": options.round_to,
        }
    }
    smodel = SparseModel(model, config, example_inputs=data[0][:2])
    if options.residual == "whole":
        smodel.disable_sparse_before_add()
    count = SCORING.get(criterion, SCORING_IMAGES)
    images, labels = data[0][:count].split(SCORING_BATCH), data[1][:count].split(SCORING_BATCH)
    smodel.calc_params(list(zip(images, labels, strict=True)), loss=functional.cross_entropy)
    return smodel


def measure(
    task: Task, criterion: str, options: argparse.Namespace, data: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    torch.manual_seed(SEED)
    dense = task.model().to(options.device)
    start = time.perf_counter()
    smodel = prune(dense, criterion, options, data)
    small = smodel.shrink()
    report = smodel.report()
    assert report.macs_before and report.macs_after
    row: dict[str, Any] = {
        "criterion": criterion,
        "scope": options.scope,
        "residual": options.residual,
        "prune_s": round(time.perf_counter() - start, 2),
        "macs_left": round(report.macs_after / report.macs_before, 4),
        "params_left": round(report.params_after / report.params_before, 4),
        "one_shot": accuracy(task, small, options.device, options.limit),
    }
    refresh_statistics(small, data[0][:STATISTICS_IMAGES])
    row["new_statistics"] = accuracy(task, small, options.device, options.limit)
    if criterion in options.finetune:
        start = time.perf_counter()
        finetune(
            small, dense, *data, epochs=options.epochs, batch=options.batch, seed=SEED, rate=options.rate
        )
        row |= {"epochs": options.epochs, "rate": options.rate, "batch": options.batch}
        row["finetune_s"] = round(time.perf_counter() - start, 1)
        row["fine_tuned"] = accuracy(task, small, options.device, options.limit)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--criteria", nargs="*", default=list(SPARSERS), choices=list(SPARSERS))
    parser.add_argument("--finetune", nargs="*", default=["l1norm"], choices=list(SPARSERS))
    parser.add_argument("--scope", default="layer", choices=("layer", "global"))
    parser.add_argument(
        "--residual", default="whole", choices=("whole", "prune"), help="channels behind additions"
    )
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--round-to", type=int, default=1, help="16-channel layers leave little to round")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--limit", type=int, default=None, help="test images, for a quick look")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cifar10.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task = open_task("cifar10_resnet56")
    data = training_data(task, options.device)
    rows: list[dict[str, Any]] = []
    result = {
        "environment": describe(SEED),
        "ratio": options.ratio,
        "round_to": options.round_to,
        "test_images": options.limit or 10_000,
        "dense": accuracy(task, task.model(), options.device, options.limit),
        "rows": rows,
    }
    console = Console()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for criterion in options.criteria:
        rows.append(measure(task, criterion, options, data))
        console.print(rows[-1])
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(*columns)
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    console.print(table)


if __name__ == "__main__":
    main()
