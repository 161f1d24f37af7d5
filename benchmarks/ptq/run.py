"""Post-training quantization to 8 bits on real data: this library with each observer, beside other tools.

All tools get the same trained model and the same calibration samples, in one run. Per task:
- the metric on the test set, float and quantized;
- SQNR of the outputs, and of every convolution and linear layer, against the float model, on test samples;
- time from prepared to quantized, as a ratio to the bare float forward over the calibration samples, in turns;
- memory: the most that calibrating takes, beside the float forward, each in a process of its own.

Run from the repository root: ``SPARSEBIT_DATA=/path/to/data python -m benchmarks.ptq.run --task cifar10_resnet20``
torchao is not a dependency of this project: ``pip install --no-deps --target FOLDER torchao==0.18.0`` and add FOLDER to
PYTHONPATH. Without it, or without onnxruntime, the run goes on and says so.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.environment import describe
from benchmarks.ptq.layers import FloatLayers, Sqnr
from benchmarks.ptq.memory import peak
from benchmarks.ptq.method import Args, Method, Missing
from benchmarks.ptq.methods import METHODS
from benchmarks.ptq.timing import compare, cost
from benchmarks.tasks import TASKS, Task, open_task

SEED = 0
PACKAGES = ("torch", "numpy", "torchao", "onnxruntime", "onnx", "onnxscript", "transformers")


def measure_task(task: Task, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    model, (example, _) = task.model(), task.example()
    batches = [args for args, _ in task.calibration(options.count, options.batch)]
    samples = [args for args, _ in _first(task, options.samples, options.batch)]
    result: dict[str, Any] = {
        "task": task.name,
        "metric": task.metric,
        "published": task.published,
        "calibration_samples": sum(len(args[0]) for args in batches),
        "calibration_batch": options.batch,
        "sqnr_samples": sum(len(args[0]) for args in samples),
        "test_limit": options.limit,
        "float": {},
        "methods": {},
    }
    if not options.no_metric:
        scored = task.evaluate(model, options.limit)
        result["float"] = {"metrics": scored.metrics, "cpu_seconds": scored.cpu_seconds}
    if not options.no_memory:
        result["float"]["memory"] = peak(
            task.name, "float", count=options.count, batch=options.batch, threads=options.threads
        )
    exact = FloatLayers(model, example)
    for name in options.method or METHODS:
        console.log(f"{task.name}: {name}")
        try:
            row = measure_method(
                METHODS[name](), name, task, model, example, batches, samples, exact, options
            )
        except Missing as error:
            row = {"note": str(error)}
        except Exception as error:  # another tool's failure is a result, not the end of the run
            row = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        result["methods"][name] = row
        _write(options, result)
    return result


def measure_method(
    method: Method,
    name: str,
    task: Task,
    model: nn.Module,
    example: Args,
    batches: Sequence[Args],
    samples: Sequence[Args],
    exact: FloatLayers,
    options: argparse.Namespace,
) -> dict[str, Any]:
    row: dict[str, Any] = {"prepare_seconds": round(cost(lambda: method.prepare(model, example)).wall, 3)}

    @torch.no_grad()
    def forward() -> None:
        for args in batches:
            model(*args)

    forward()
    method.calibrate(batches)  # the first one pays for imports
    timing = compare(
        lambda: method.calibrate(batches), forward, rounds=options.rounds, patience=options.patience
    )
    row["calibrate"] = {
        "wall_seconds": round(timing.seconds.wall, 3),
        "cpu_seconds": round(timing.seconds.cpu, 3),
        "wall_over_float_forward": round(timing.wall_ratio, 3),
        "cpu_over_float_forward": round(timing.cpu_ratio, 3),
        "rounds": timing.rounds,
    }
    layers, outputs = Sqnr(), Sqnr()
    with torch.no_grad():
        for args in samples:
            outputs.add(_leaves(model(*args)), _leaves(method.predict(*args)))
            layers.add(exact(args), method.layers(args))
    decibels = layers.decibels()
    row["sqnr_output_db"] = {key: round(value, 2) for key, value in outputs.decibels().items()}
    row["sqnr_layers_db"] = {key: round(value, 2) for key, value in decibels.items()}
    row["sqnr_layers_mean_db"] = round(statistics.mean(decibels.values()), 2) if decibels else None
    row["sqnr_layers_min_db"] = round(min(decibels.values()), 2) if decibels else None
    if not options.no_metric:
        scored = task.evaluate(lambda *args: method.predict(*args), options.limit)
        row["metrics"] = scored.metrics
    if not options.no_memory:
        row["memory"] = peak(
            task.name, name, count=options.count, batch=options.batch, threads=options.threads
        )
    return row


def _leaves(output: Any) -> dict[str, Tensor]:
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return {f"output {index}": leaf for index, leaf in enumerate(leaves)}


def _first(task: Task, count: int, batch: int) -> list[Any]:
    """Test samples, as the metric sees them."""
    calls = task.test_calls(count, min(batch, task.batch))
    return [call() for call in calls]


def _write(options: argparse.Namespace, result: dict[str, Any]) -> None:
    installed = tuple(package for package in PACKAGES if _version(package))
    options.output.mkdir(parents=True, exist_ok=True)
    content = {"environment": describe(SEED, installed), **result}
    path = options.output / f"{result['task']}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(result: dict[str, Any]) -> Table:
    table = Table(title=f"{result['task']}: {result['metric']}, published {result['published']}")
    headings = (
        "method",
        "metric",
        "output dB",
        "layers dB, mean",
        "min",
        "calibrate / forward, CPU",
        "memory",
    )
    for heading in headings:
        table.add_column(heading)
    float_metrics = result["float"].get("metrics", {})
    extra = result["float"].get("memory")
    table.add_row(
        "float", _number(float_metrics.get(result["metric"])), "", "", "", "1", _growth(extra, extra)
    )
    for name, row in result["methods"].items():
        if "calibrate" not in row:
            table.add_row(name, str(row.get("failed") or row.get("note")))
            continue
        table.add_row(
            name,
            _number(row.get("metrics", {}).get(result["metric"])),
            " ".join(f"{value:.1f}" for value in row["sqnr_output_db"].values()),
            _number(row["sqnr_layers_mean_db"]),
            _number(row["sqnr_layers_min_db"]),
            _number(row["calibrate"]["cpu_over_float_forward"]),
            _growth(row.get("memory"), extra),
        )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _growth(memory: dict[str, float] | None, reference: dict[str, float] | None) -> str:
    """Peak of the process, and the part that calibrating added, both as ratios to the float forward."""
    if memory is None or reference is None:
        return ""
    added = memory["peak_mb"] - memory["before_mb"]
    added_float = reference["peak_mb"] - reference["before_mb"]
    return f"{memory['peak_mb'] / reference['peak_mb']:.2f}, added {added:.0f} of {added_float:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", action="append", choices=sorted(TASKS), help="repeatable; all if left out")
    parser.add_argument(
        "--method", action="append", choices=sorted(METHODS), help="repeatable; all if left out"
    )
    parser.add_argument("--count", type=int, default=256, help="calibration samples")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--samples", type=int, default=128, help="test samples that SQNR is measured on")
    parser.add_argument("--limit", type=int, help="only so many test samples for the metric")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved pairs for the times")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds after which no further pair begins"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-metric", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console(stderr=True)
    for name in options.task or TASKS:
        torch.manual_seed(SEED)
        result = measure_task(open_task(name), options, console)
        _write(options, result)
        Console().print(show(result))


if __name__ == "__main__":
    main()
