"""Post-training quantization of trained image classifiers: what each tool makes of the same model and data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.one_row import folder_of, measured, python_of, time_file
from benchmarks.peers.row import Column, Options, Row, count_lines, failed_row

HERE, PART = Path(__file__).parent, sys.modules[__name__]
TITLE = "Quantization after training"
MODELS = ("cifar10_resnet20", "cifar10_resnet56")
OURS = "sparsebit"
PEERS = (
    OURS, "onnxruntime", "torchao", "nncf", "neural_compressor", "modelopt", "aimet", "brevitas", "quanto",
)  # fmt: skip
WIDTHS = ("W8A8", "W4A8")  # of every peer; one that cannot do a width says so itself
SETTINGS: dict[str, tuple[str, ...]] = {
    OURS: ("W8A8", "W4A8", "W4A8, bias corrected"),
    "onnxruntime": ("W8A8", "W8A8, its defaults", "W4A8"),
    "brevitas": ("W8A8", "W8A8, graph flow", "W4A8"),
}
COLUMNS = (
    Column(key="accuracy", heading="accuracy %", better="higher"),
    Column(key="model_sqnr_db", heading="model, dB", better="higher", digits=1),
    Column(key="file_sqnr_db", heading="file, dB", better="higher", digits=1),
    Column(key="calibration_seconds", heading="calibration CPU s", better="lower"),
    Column(key="to_file_seconds", heading="to the file CPU s", better="lower"),
    Column(key="memory_mb", heading="memory added MB", better="lower", digits=0),
    Column(key="file_mb", heading="file MB", better="lower"),
    Column(key="latency_ms", heading="ms, batch 1", better="lower"),
    Column(key="speedup", heading="× float", better="higher"),
    Column(key="speedup_of_ours", heading="ours × float, same minute", digits=2),
)
CHART = "file_sqnr_db"
SIZES = {"count": 256, "samples": 500, "limit": 2000}
QUICK = {"count": 32, "samples": 64, "limit": 100}
PROTOCOL: dict[str, Any] = {
    "models": "trained ResNet-20 and ResNet-56 on CIFAR-10, float accuracy 91.73 % and 93.39 % on all test images",
    "calibration_images": SIZES["count"],
    "sqnr_images": SIZES["samples"],
    "test_images": SIZES["limit"],
    "calibration": "CPU seconds of one thread after a warm-up; from a float model (or ONNX file) to quantized",
    "latency": "median of ONNX Runtime on one thread, batch 1, in turns with the float file and our W8A8 file",
    "memory": "growth of the process' peak while preparing and calibrating",
}


def measure(peer: str, options: Options) -> list[Row]:
    """Every model and setting of one peer."""
    python = python_of(PART, peer, options)
    return [
        _row(peer, model, setting, python, options)
        for model in (options.models or MODELS)
        for setting in SETTINGS.get(peer, WIDTHS)
        if options.wants(setting)
    ]


def _row(peer: str, model: str, setting: str, python: Path, options: Options) -> Row:
    found = measured(PART, peer, model, setting, python, options)
    version = found.pop("version", "")
    if reason := found.pop("failed", ""):
        return failed_row(peer, model, setting, reason, version)
    note = found.pop("export_failed", "")
    if file := found.pop("file", None):
        own = folder_of(OURS, model, "W8A8", options) / "quantized.onnx"
        if not own.is_file():
            measured(PART, OURS, model, "W8A8", Path(sys.executable), options)
        found |= time_file(Path(file), own, model, options)
    return Row(
        peer=peer,
        version=version,
        model=model,
        setting=setting,
        measures={column.key: _rounded(found.get(column.key)) for column in COLUMNS},
        lines=count_lines(HERE / "scripts" / f"{peer}.py"),
        note=f"no file: {note}" if note else "",
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
