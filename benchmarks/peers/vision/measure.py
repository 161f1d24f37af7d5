"""A quantizer on one model in one setting, inside the peer's environment.

The model that the tool makes is asked, and so is the file where it writes one: what is deployed is the file.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.answer import print_answer, say
from benchmarks.peers.peak import peak_mb, reset_peak
from benchmarks.tasks import Task

BATCH = 32
Predict = Callable[[Tensor], Any]


def measure(script: Any, task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one run, except the latency of its file, which is measured beside other files."""
    batches = [args[0] for args, _ in task.calibration(options.count, BATCH)]
    samples = [call()[0][0] for call in task.test_calls(options.samples, BATCH)]
    exact_model = task.model()
    with torch.no_grad():
        exact = [exact_model(sample) for sample in samples]
    forward_before = _cpu_seconds(lambda: _forward(exact_model, batches))
    model = task.model()
    _warm_up(script, task, options)
    before = reset_peak()
    start = time.process_time()
    if hasattr(script, "prepare"):
        script.prepare(model, batches[0], options.folder)
    prepared = time.process_time()
    made = script.quantize(model, batches, options.folder, options.setting)
    finished = time.process_time()
    added = peak_mb() - before
    forward_after = _cpu_seconds(lambda: _forward(exact_model, batches))
    found: dict[str, Any] = {
        "calibration_seconds": finished - prepared,
        "forwards": (finished - prepared) / ((forward_before + forward_after) / 2),
        "memory_mb": added,
    }
    path = made if isinstance(made, Path) else None
    if path is None:
        predict = getattr(script, "predictor", lambda quantized: quantized)(made)
        with torch.no_grad():
            found["model_sqnr_db"] = sqnr(exact, [predict(sample) for sample in samples])
        exporting = time.process_time()
        path, found["export_failed"] = _export(script, made, samples[0][:2], options.folder)
        finished += time.process_time() - exporting
    if path is None:
        if hasattr(script, "export"):  # an export that failed half-way may have changed the model
            made = script.quantize(task.model(), batches, options.folder, options.setting)
            predict = getattr(script, "predictor", lambda quantized: quantized)(made)
        found["accuracy"] = task.evaluate(predict, options.limit).metric
        return found
    found["to_file_seconds"] = finished - start
    run = file_predictor(path)
    found["file_sqnr_db"] = sqnr(exact, [run(sample) for sample in samples])
    found["accuracy"] = task.evaluate(run, options.limit).metric
    found["file_mb"] = sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*")) / 1e6
    found["file"] = str(path)
    return found


def _export(script: Any, made: Any, example: Tensor, folder: Path) -> tuple[Path | None, str]:
    if not hasattr(script, "export"):
        return None, "it has no ONNX export"
    path = folder / "quantized.onnx"
    try:
        script.export(made, example, path)
        file_predictor(path)(example)
    except Exception as error:
        return None, say(error)
    return path, ""


def _warm_up(script: Any, task: Task, options: argparse.Namespace) -> None:
    """Imports and compilations of a first call are not what calibration costs."""
    folder = options.folder / "warm"
    folder.mkdir(exist_ok=True)
    batches = [args[0] for args, _ in task.calibration(2, 2)]
    if hasattr(script, "prepare"):
        script.prepare(task.model(), batches[0], folder)
    script.quantize(task.model(), batches, folder, options.setting)


def _forward(model: nn.Module, batches: list[Tensor]) -> None:
    with torch.no_grad():
        for batch in batches:
            model(batch)


def _cpu_seconds(function: Callable[[], None]) -> float:
    function()
    start = time.process_time()
    function()
    return time.process_time() - start


def sqnr(exact: list[Tensor], given: list[Any]) -> float:
    """Power of the float outputs over the power of the error, in dB, over all samples."""
    signal = sum(float(value.double().square().sum()) for value in exact)
    noise = sum(
        float((value.double() - torch.as_tensor(other).double()).square().sum())
        for value, other in zip(exact, given, strict=True)
    )
    return float(10 * torch.log10(torch.tensor(signal / max(noise, 1e-30))))


def file_predictor(path: Path) -> Predict:
    """The file in ONNX Runtime with its default optimizations, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: torch.from_numpy(session.run(None, {name: images.numpy()})[0])


if __name__ == "__main__":
    print_answer("vision", measure, ("count", "samples", "limit"))
