"""Are bits chosen layer by layer better than one width for all, at the same size or the same bit operations?

Every layer's error is measured at every width on the calibration images, with one tensor quantized at a time. For each
uniform setting the integer program then gets exactly the bytes (activations at 8 bits), or exactly the bit operations,
that the uniform setting takes. Everything is rounded to the nearest, per channel, with mse observers and batch norm
folded; no recovery step, no labels.

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.mixed_precision.run [--task ...]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.tasks import Task, open_task
from sparsebit.analysis import Sensitivity, choose_bits, profile, sensitivity
from sparsebit.analysis.bits.choose_bits import config_of
from sparsebit.quantization import QuantModel, parse_qconfig

SEED = 0


class Bench:
    """One task on one device."""

    def __init__(self, task: Task, options: argparse.Namespace) -> None:
        self.task, self.options, self.device = task, options, torch.device(options.device)
        self.model = task.model().to(self.device)
        self.example = self.move(task.example())
        self.data = [self.move(args) for args, _ in task.calibration(options.images, options.batch)]
        self.config = parse_qconfig("w4a8", [f"DEVICE={options.device}", "FIRST_LAST=null"])
        self.known: dict[str, tuple[float, float]] = {}

    def move(self, value: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self.device), value)

    def sensitivity(self, metric: str, sides: tuple[Any, ...]) -> tuple[Sensitivity, float]:
        start = time.perf_counter()
        found = sensitivity(
            self.model,
            self.config,
            self.data,
            example_inputs=self.example[0],
            bits=self.options.bits,
            sides=sides,
            metric=metric,  # type: ignore[arg-type]
        )
        return found, time.perf_counter() - start

    def score(self, config: Any) -> tuple[float, float]:
        """The task's metric, and the SQNR of the outputs on the calibration images."""
        key = config.to_yaml()
        if key not in self.known:
            qmodel = QuantModel(self.model, config, self.example[0])
            qmodel.calibrate(self.data, progress=False)
            errors = profile(qmodel, self.data[:1])
            qmodel.set_quant(w_quant=True, a_quant=True)
            result = self.task.evaluate(
                lambda *a, **k: qmodel(*self.move(a), **self.move(k)), self.options.limit
            )
            self.known[key] = (result.metric, errors.output.sqnr_db)
        return self.known[key]

    def rows(self, kind: str, metric: str, uniform: list[int]) -> Iterator[dict[str, Any]]:
        """One for each uniform width, with the mixed one of the same cost beside it."""
        found, seconds = self.sensitivity(metric, ("W",) if kind == "size" else ("W", "A"))
        for width in uniform:
            same = found.uniform(width)
            budget = found.size(same) if kind == "size" else found.bops(same)
            chosen = choose_bits(found, **{kind: budget})
            plain, mixed = self.score(config_of(found, same)), self.score(chosen.config)
            yield {
                "kind": kind,
                "sensitivity": metric,
                "uniform_bits": width,
                "budget": budget,
                "mixed_cost": chosen.cost,
                "uniform": {"metric": round(plain[0], 4), "output_db": round(plain[1], 2)},
                "mixed": {"metric": round(mixed[0], 4), "output_db": round(mixed[1], 2)},
                "bits": dict(chosen.bits),
                "sensitivity_seconds": round(seconds, 1),
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="cifar10_resnet20")
    parser.add_argument("--bits", type=int, nargs="*", default=[2, 3, 4, 5, 6, 8, 16, 32])
    parser.add_argument("--uniform", type=int, nargs="*", default=[3, 4, 5, 6, 8])
    parser.add_argument("--kinds", nargs="*", default=["size", "bops"], choices=["size", "bops"])
    parser.add_argument("--metrics", nargs="*", default=["output", "fisher", "hessian"])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64, help="calibration images at a time")
    parser.add_argument("--limit", type=int, default=None, help="test samples, for a quick look")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    console, bench = Console(), Bench(open_task(options.task), options)
    output = options.output or Path(__file__).parent / "results" / f"{options.task}.json"
    rows: list[dict[str, Any]] = []
    for kind, metric in itertools.product(options.kinds, options.metrics):
        for row in bench.rows(kind, metric, options.uniform):
            rows.append(row)
            output.parent.mkdir(parents=True, exist_ok=True)
            content = {
                "task": bench.task.name,
                "float": bench.task.published,
                "images": options.images,
                "limit": options.limit,
                "bits": options.bits,
                "environment": describe(SEED, ("torch", "numpy", "scipy")),
                "rows": rows,
            }
            output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    head = ("budget", "by", "bits", "uniform", "mixed", "uniform dB", "mixed dB")
    table = Table(*head, title=f"{bench.task.name}, {bench.task.metric}, float {bench.task.published}")
    for row in rows:
        plain, mixed = row["uniform"], row["mixed"]
        numbers = [
            f"{plain['metric']:.2f}",
            f"{mixed['metric']:.2f}",
            f"{plain['output_db']:.1f}",
            f"{mixed['output_db']:.1f}",
        ]
        table.add_row(row["kind"], row["sensitivity"], str(row["uniform_bits"]), *numbers)
    console.print(table)


if __name__ == "__main__":
    main()
