"""All steps: train or load, prune, train again, quantize, export, run, compare, report."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from sparsebit.analysis.size import quantized_bytes
from sparsebit.demo.digits import Batch, held_out_data, training_data
from sparsebit.demo.digits_net import net
from sparsebit.demo.train import one_thread, train, trained
from sparsebit.display import short_bytes
from sparsebit.export import OnnxExport, export_onnx
from sparsebit.progress import progress
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.report import ParetoPoint, collect, measure, save_report
from sparsebit.report.page import require_page
from sparsebit.runtime import OnnxFile, compare_latency
from sparsebit.sparse import SparseModel, SparseReport, parse_sconfig

PRUNING = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 8}}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a model as an ONNX file in ONNX Runtime."""

    name: str
    accuracy: float
    bytes: int
    milliseconds: float
    agreement: float
    """Fraction of the test images for which the file and its torch model give the same answer."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo shows."""

    rows: tuple[Row, ...]
    files: tuple[Path, ...]
    seconds: float
    pruning: SparseReport
    mismatch: float
    """Fraction of the quantized values that differ between torch and the file."""

    def shown(self) -> Iterable[Any]:
        """The report as a table for a terminal."""
        table = Table(title=f"{sum(len(y) for _, y in held_out_data())} handwritten digits in ONNX Runtime")
        for index, head in enumerate(
            ("model", "accuracy", "size", "smaller", "latency", "faster", "agreement")
        ):
            table.add_column(head, justify="right" if index else "left")
        first = self.rows[0]
        for row in self.rows:
            table.add_row(
                row.name,
                f"{100 * row.accuracy:.2f} %",
                short_bytes(row.bytes),
                f"{first.bytes / row.bytes:.1f}×",
                f"{row.milliseconds:.2f} ms",
                f"{first.milliseconds / row.milliseconds:.1f}×",
                f"{100 * row.agreement:.2f} %",
            )
        yield table
        yield "agreement: how often the file and its torch model give the same answer"
        yield f"pruning: {str(self.pruning).splitlines()[0]}"
        yield f"quantized values that differ between torch and the file: {self.mismatch:.3%}"
        yield f"{self.seconds:.0f} s; written: {', '.join(map(str, self.files))}"


def run_demo(folder: Path, *, train: bool = False, seconds: float = 1.0, recovery: int = 12) -> DemoResult:
    """Run all steps and write three ONNX files and ``report.html`` to ``folder``.

    Args:
        folder: the output folder, created if needed.
        train: train the network from scratch instead of loading its weights.
        seconds: to time each file for.
        recovery: epochs of training after pruning.
    """
    with one_thread():
        return _run(folder, train, seconds, recovery)


def _run(folder: Path, anew: bool, seconds: float, recovery: int) -> DemoResult:
    started = time.monotonic()
    require_page()
    folder.mkdir(parents=True, exist_ok=True)
    calibration, test = training_data(), held_out_data()
    example = calibration[0][0][:2]
    model = trained() if anew else net()
    smodel, small = prune(model, example, recovery)
    qmodel = quantize(small, example, calibration)
    exports = {
        "float": export_onnx(model, example, folder / "float.onnx"),
        "pruned": export_onnx(small, example, folder / "pruned.onnx"),
        "pruned, int8": export_onnx(qmodel, calibration[0][0], folder / "int8.onnx"),
    }
    rows = _measure(exports, dict(zip(exports, (model, small, qmodel), strict=True)), test, seconds)
    first, last = rows[0], rows[-1]
    check = exports[last.name].report
    report = collect(
        qmodel,
        test,
        name="The digits network",
        accuracy=(first.accuracy, last.accuracy),
        size=(first.bytes, last.bytes),
        latency=(first.milliseconds / 1e3, last.milliseconds / 1e3),
        latency_note=f"{len(test[0][0])} images per call, ONNX Runtime, one thread",
        pruning=smodel.report(),
        pruning_config=smodel.cfg,
        check=check,
        pareto=trade_off(model, small, calibration, test),
        pareto_axes=("kB of weights", "accuracy"),
        chosen_because="ONNX Runtime computes on 8-bit integers; 4-bit weights are smaller, but not faster there.",
    )
    page = save_report(folder / "report.html", report)
    return DemoResult(
        rows=rows,
        files=(*(done.path for done in exports.values()), page),
        seconds=time.monotonic() - started,
        pruning=smodel.report(),
        mismatch=check.mismatch_share if check is not None else 0.0,
    )


def prune(model: nn.Module, example: torch.Tensor, recovery: int) -> tuple[SparseModel, nn.Module]:
    """Remove half of the channels, those with the smallest weights; a short training recovers the accuracy."""
    smodel = SparseModel(model, parse_sconfig(PRUNING), (example,))
    smodel.calc_params()
    small = smodel.shrink()
    train(small, recovery, lr=0.03, seed=1)
    return smodel, small


def quantize(
    model: nn.Module, example: torch.Tensor, data: list[Batch], config: str = "int8_onnxruntime"
) -> QuantModel:
    """A preset, calibrated on some of the training images."""
    qmodel = QuantModel(model, parse_qconfig(config, ["DEVICE=cpu"]), (example,))
    qmodel.calibrate(data[:8])
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


def trade_off(model: nn.Module, small: nn.Module, data: list[Batch], test: list[Batch]) -> list[ParetoPoint]:
    """Other recipes for the same network, for the trade-off curve of the report."""
    example = data[0][0][:2]
    recipes = [("", model), ("pruned, ", small)]
    points = [
        _point(f"{words}float", sum(p.nbytes for p in base.parameters()), measure(base, test))
        for words, base in recipes
    ]
    presets = [("int8", "int8_onnxruntime"), ("w4a8", "w4a8")]
    for words, base in progress(recipes, "trying other recipes"):
        for name, preset in presets:
            qmodel = quantize(base, example, data, preset)
            chosen = bool(words) and name == "int8"
            points.append(
                _point(f"{words}{name}", quantized_bytes(qmodel), measure(qmodel, test), chosen=chosen)
            )
    return points


def _point(name: str, size: float, quality: float, *, chosen: bool = False) -> ParetoPoint:
    return ParetoPoint(name=name, cost=size / 1e3, quality=quality, chosen=chosen)


def _measure(
    exports: dict[str, OnnxExport], models: dict[str, nn.Module], test: list[Batch], seconds: float
) -> tuple[Row, ...]:
    files = {name: OnnxFile(done.path, threads=1) for name, done in exports.items()}
    calls: dict[str, Callable[[], object]] = {
        name: functools.partial(file.run, file.feed(test[0][0])) for name, file in files.items()
    }
    times = compare_latency(calls, seconds=seconds)
    return tuple(
        Row(
            name=name,
            accuracy=measure(file, test, what=f"measuring {name}"),
            bytes=file.bytes,
            milliseconds=times[name].milliseconds,
            agreement=_agreement(models[name], file, test),
        )
        for name, file in files.items()
    )


def _agreement(model: nn.Module, file: OnnxFile, test: list[Batch]) -> float:
    with torch.no_grad():
        answers = [(images, model(images).argmax(1)) for images, _ in test]
    return measure(file, answers, shown=False)
