"""Structured pruning: half of a trained network's multiply-accumulates removed, without training afterwards."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.row import Column, Options, Row, count_lines, failed_row
from benchmarks.peers.venv import ensure, run_script
from benchmarks.tasks import open_task

HERE = Path(__file__).parent
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
COUNT, LIMIT, ROUNDS = 512, 2000, 61
PROTOCOL: dict[str, Any] = {
    "models": "trained ResNet-20 and ResNet-56 on CIFAR-10",
    "budget": "half of the multiply-accumulates of convolutions and linear layers, counted by one function for all",
    "gradient_images": COUNT,
    "new_statistics": "statistics of batch norm taken anew from 1,000 training images, no weight changes",
    "test_images": LIMIT,
    "latency": "ONNX Runtime on one thread, batch 1, in turns with the float file and ours of the same setting",
}


def measure(peer: str, options: Options) -> list[Row]:
    """Every model and setting of one tool."""
    python = (
        Path(sys.executable)
        if peer == OURS
        else ensure(options.venvs, peer, HERE / "requirements" / f"{peer}.txt")
    )
    models = options.models or MODELS
    return [_row(peer, model, setting, python, options) for model in models for setting in SETTINGS]


def _row(peer: str, model: str, setting: str, python: Path, options: Options) -> Row:
    found = _measured(peer, model, setting, python, options)
    version = found.pop("version", "")
    if reason := found.pop("failed", ""):
        return failed_row(peer, model, setting, reason, version)
    found |= _latency(Path(found.pop("file")), model, setting, options)
    return Row(
        peer=peer,
        version=version,
        model=model,
        setting=setting,
        measures={column.key: float(f"{found[column.key]:.5g}") for column in COLUMNS},
        lines=count_lines(HERE / "scripts" / f"{peer}.py"),
    )


def _measured(peer: str, model: str, setting: str, python: Path, options: Options) -> dict[str, Any]:
    count, limit = (64, 100) if options.quick else (COUNT, LIMIT)
    try:
        return run_script(
            python,
            "benchmarks.peers.pruning.measure",
            *("--peer", peer, "--model", model, "--setting", setting),
            *("--folder", str(_folder(peer, model, setting, options))),
            *("--count", str(count), "--limit", str(limit)),
            threads=options.threads,
        )
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def _folder(peer: str, model: str, setting: str, options: Options) -> Path:
    return options.work / peer / model / setting.replace(" ", "_").replace(",", "")


def _latency(file: Path, model: str, setting: str, options: Options) -> dict[str, float]:
    """One file in turns with the float file and ours, so that other work on the machine disturbs all alike."""
    from sparsebit import capture
    from sparsebit.export import export_graph
    from sparsebit.runtime import compare_latency, open_session

    example = open_task(model).example()[0]
    dense = options.work / f"{model}.onnx"
    if not dense.is_file():
        export_graph(capture(open_task(model).model(), example), example, {}, dense)
    own = _folder(OURS, model, setting, options) / "pruned.onnx"
    if not own.is_file():
        _measured(OURS, model, setting, Path(sys.executable), options)
    files = {"float": dense, "ours": own, "peer": file}
    image = example[0][:1].numpy()
    sessions = {
        name: open_session(path, threads=options.threads, spinning=False) for name, path in files.items()
    }
    calls = {
        name: partial(session.run, {session.inputs[0].name: image}) for name, session in sessions.items()
    }
    times = compare_latency(calls, seconds=2, rounds=ROUNDS, shown=False)
    return {
        "speedup": times.speedup("peer", "float").median,
        "speedup_of_ours": times.speedup("ours", "float").median,
    }
