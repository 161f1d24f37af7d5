"""What a result was measured on: kept in every result file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from sparsebit.storage import write_text


def describe(seed: int, packages: tuple[str, ...] = ("torch", "numpy")) -> dict[str, Any]:
    """Seed, versions, hardware and commit."""
    return {
        "seed": seed,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "commit": _commit(),
    }


def report(result: dict[str, Any], path: Path | None) -> None:
    """Print a result, and write it where a file is named."""
    text = json.dumps(result, indent=1)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


def add_run(result: dict[str, Any], path: Path) -> None:
    """Print a result, and add it to the runs in a file."""
    print(json.dumps(result, indent=1))
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    write_text(path, json.dumps({"runs": [*runs, result]}, indent=1) + "\n")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str:
    """The commit of the tree; one that came without its history, or with an older one, is named in SPARSEBIT_COMMIT."""
    if named := os.environ.get("SPARSEBIT_COMMIT"):
        return named
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
