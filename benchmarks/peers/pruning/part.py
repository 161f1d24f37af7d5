"""Structured pruning: half of a trained network's multiply-accumulates removed, without training afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.one_row import folder_of, measured, python_of, time_file
from benchmarks.peers.row import Column, Options, Row, count_lines, failed_row

HERE, PART = Path(__file__).parent, sys.modules[__name__]
TITLE = "Structured pruning"
MODELS = ("cifar10_resnet20", "cifar10_resnet56")
OURS = "sparsebit"
PEERS = (OURS, "torch_pruning")
SETTINGS = ("L1 norm", "L1 norm, additions kept", "Taylor, additions kept")
COLUMNS = (
    Column(key="one_shot", heading="accuracy %, one-shot", better="higher", digits=1),
    Column(key="new_statistics", heading="accuracy %, new statistics", better="higher", digits=1),
    Column(key="macs_left", heading="MACs left %", digits=1),
    Column(key="params_left", heading="parameters left %", digits=1),
    Column(key="prune_seconds", heading="CPU s", better="lower"),
    Column(key="memory_mb", heading="memory added MB", better="lower", digits=0),
    Column(key="file_mb", heading="file MB"),
    Column(key="speedup", heading="× float, ONNX Runtime", better="higher"),
    Column(key="speedup_of_ours", heading="ours × float, same minute"),
)
CHART = "new_statistics"
SIZES = {"count": 512, "limit": 2000}
QUICK = {"count": 64, "limit": 100}
PROTOCOL: dict[str, Any] = {
    "models": "trained ResNet-20 and ResNet-56 on CIFAR-10",
    "budget": "half of the multiply-accumulates of convolutions and linear layers, counted by one function for all",
    "gradient_images": SIZES["count"],
    "new_statistics": "statistics of batch norm taken anew from 1,000 training images, no weight changes",
    "test_images": SIZES["limit"],
    "latency": "ONNX Runtime on one thread, batch 1, in turns with the float file and ours of the same setting",
}


def measure(peer: str, options: Options) -> list[Row]:
    """Every model and setting of one tool."""
    python = python_of(PART, peer, options)
    models = options.models or MODELS
    return [
        _row(peer, model, setting, python, options)
        for model in models
        for setting in SETTINGS
        if options.wants(setting)
    ]


def _row(peer: str, model: str, setting: str, python: Path, options: Options) -> Row:
    found = measured(PART, peer, model, setting, python, options)
    version = found.pop("version", "")
    if reason := found.pop("failed", ""):
        return failed_row(peer, model, setting, reason, version)
    own = folder_of(OURS, model, setting, options) / "pruned.onnx"
    if not own.is_file():
        measured(PART, OURS, model, setting, Path(sys.executable), options)
    found |= time_file(Path(found.pop("file")), own, model, options)
    return Row(
        peer=peer,
        version=version,
        model=model,
        setting=setting,
        measures={column.key: float(f"{found[column.key]:.5g}") for column in COLUMNS},
        lines=count_lines(HERE / "scripts" / f"{peer}.py"),
    )
