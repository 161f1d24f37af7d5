"""One peer on one model in one setting: measured in the peer's environment, its file timed in ours."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.row import Options
from benchmarks.peers.venv import ensure, run_script
from benchmarks.tasks import open_task

ROUNDS = 61


def python_of(part: Any, peer: str, options: Options) -> Path:
    """The python that a peer runs in: ours where it needs no packages of its own."""
    pins = Path(part.__file__).parent / "requirements" / f"{peer}.txt"
    return ensure(options.venvs, peer, pins) if pins.is_file() else Path(sys.executable)


def measured(
    part: Any, peer: str, model: str, setting: str, python: Path, options: Options
) -> dict[str, Any]:
    """What the part's ``measure.py`` printed, or why it printed nothing, under ``failed``."""
    sizes = part.QUICK if options.quick else part.SIZES
    try:
        return run_script(
            python,
            f"{part.__package__}.measure",
            *("--peer", peer, "--model", model, "--setting", setting),
            *("--folder", str(folder_of(peer, model, setting, options))),
            *(word for name, size in sizes.items() for word in (f"--{name}", str(size))),
            threads=options.threads,
        )
    except Exception as error:  # another tool's failure is a result, not the end of the run
        return {"failed": f"{type(error).__name__}: {error}"}


def folder_of(peer: str, model: str, setting: str, options: Options) -> Path:
    """Where the files of one row are."""
    return options.work / peer / model / setting.replace(" ", "_").replace(",", "")


def time_file(file: Path, own: Path, model: str, options: Options) -> dict[str, float]:
    """One file in turns with the float file and ours, so that other work on the machine disturbs all alike."""
    from sparsebit.runtime import compare_latency, open_session

    example = open_task(model).example()[0]
    files = {"float": _float_file(model, example, options), "ours": own, "peer": file}
    image = example[0][:1].numpy()
    sessions = {
        name: open_session(path, threads=options.threads, spinning=False) for name, path in files.items()
    }
    calls = {
        name: partial(session.run, {session.inputs[0].name: image}) for name, session in sessions.items()
    }
    times = compare_latency(calls, seconds=2, rounds=ROUNDS, shown=False)
    return {
        "latency_ms": times["peer"].milliseconds,
        "speedup": times.speedup("peer", "float").median,
        "speedup_of_ours": times.speedup("ours", "float").median,
    }


def _float_file(model: str, example: Any, options: Options) -> Path:
    from sparsebit import capture
    from sparsebit.export import export_graph

    path = options.work / f"{model}.onnx"
    if not path.is_file():
        export_graph(capture(open_task(model).model(), example), example, {}, path)
    return path
