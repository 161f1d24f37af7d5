"""Inside a peer's environment: one peer on one model in one setting, printed as one JSON object."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import logging
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.tasks import Task, open_task

SEED = 0
Measure = Callable[[Any, Task, argparse.Namespace], dict[str, Any]]


def print_answer(part: str, measure: Measure, sizes: Sequence[str]) -> None:
    """The main function of a part's ``measure.py``.

    Args:
        part: the folder under ``benchmarks/peers`` whose scripts are measured.
        measure: from the peer's script, the task and the options to the figures of a row.
        sizes: names of the options that are whole numbers, all required.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("peer", "model", "setting"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the files that are made")
    for name in sizes:
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    try:
        script = importlib.import_module(f"benchmarks.peers.{part}.scripts.{options.peer}")
        found = measure(script, open_task(options.model), options)
        found["version"] = importlib.metadata.version(script.PACKAGE)
    except Exception as error:  # another tool's failure is a result
        traceback.print_exc()
        found = {"failed": say(error)}
    print("\n" + json.dumps(found))


def say(error: BaseException) -> str:
    """The class and the start of the message, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
