"""Checks before torch is loaded: whether the named files exist, and whether the results can be written."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

from sparsebit.cli.command import UsageError, command_to_copy
from sparsebit.cli.reference import is_reference, require_reference
from sparsebit.errors import missing_package
from sparsebit.storage import MANIFEST, require_file, require_place

_CODE = ("model", "metric", "loss", "finetune")  # arguments that name an object of the user's code
_FILES = ("weights", "file")
_FOLDERS = ("quantized",)
_DATA = ("data", "test")
LEAST = 2**16  # bytes that any result takes
LEAST_SHARE = 8  # the fraction of a float model's bytes that any result takes, even with 4-bit weights


def require_one_process() -> None:
    """Raise under ``torchrun``: every process would do the same work and write the same files."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            "commands run in one process, and torchrun has started several",
            got=f"WORLD_SIZE={os.environ['WORLD_SIZE']}",
            hint="start sparsebit without torchrun, or write a script: docs/how-to/many_processes.md",
        )


def require_named_things(arguments: argparse.Namespace) -> None:
    """Raise an error for missing files. Their contents are checked later, by the code that reads them."""

    def given(names: tuple[str, ...]) -> list[tuple[str, Any]]:
        return [(name, value) for name in names if (value := getattr(arguments, name, None))]

    model, file = str(getattr(arguments, "model", "")), getattr(arguments, "file", None)
    if file is not None and model.endswith(".onnx") and not model == str(file):
        raise UsageError(
            "the arguments are in the wrong order",
            expected="FILE MODEL",
            hint=command_to_copy("check", model, file),
        )
    for kind, reference in given(_CODE):
        require_reference(reference, "function" if kind == "finetune" else kind)
    for what in getattr(arguments, "timed", ()):
        if what.endswith(".onnx"):
            _require_file(what, "file")
        else:
            require_reference(what, "model")
    for plug_in in getattr(arguments, "plug_in", ()):
        if plug_in.endswith(".py"):
            _require_file(plug_in, "file")
        elif not all(part.isidentifier() for part in plug_in.split(".")):
            raise UsageError(
                f"--plug-in {plug_in!r} is not a file or a module", expected="file.py or package.module"
            )
    for kind, path in given(_FILES):
        _require_file(path, "weights file" if kind == "weights" else "file")
    folders = [*given(_FOLDERS), *(("pruned", folder) for folder in getattr(arguments, "pruned", ()))]
    for kind, folder in folders:
        if not Path(folder, MANIFEST).is_file():
            maker = "prune" if kind == "pruned" else "quantize"
            raise UsageError(
                f"{folder} is not a saved model" if Path(folder).exists() else f"no such folder: {folder}",
                expected=f"a folder that `sparsebit {maker}` wrote, with {MANIFEST} in it",
            )
    sources = [source for _, source in given(_DATA)]
    for source in sources:
        require_data(source)
    images = any(Path(source).is_dir() for source in sources)
    arrays = any(Path(source).suffix == ".npz" for source in sources)
    for option, used, what in (
        ("batch_size", images or arrays, "folders of images and .npz files"),
        ("image_size", images, "folders of images"),
        ("mean", images, "folders of images"),
        ("std", images, "folders of images"),
        ("batches", bool(sources), "data"),
    ):
        if getattr(arguments, option, None) is not None and not used:
            raise UsageError(f"--{option.replace('_', '-')} is for {what} only, and has no effect here")


def require_outputs(arguments: argparse.Namespace, model_bytes: int = 0) -> None:
    """Before any work, raise an error if an output cannot be written or the disk is too full.

    Called twice: before torch is loaded, and again when the size of the float model is known.
    """
    output, report = getattr(arguments, "output", None), getattr(arguments, "report", None)
    writes = arguments.command.writes if "command" in arguments else ""
    needs = max(LEAST, model_bytes // LEAST_SHARE)
    if output is not None and writes == "folder":
        require_place(output, needs)
    elif output is not None and writes:
        require_file(output if writes == "file" else output / "file", needs)
    if report is None:
        return
    if importlib.util.find_spec("jinja2") is None:
        raise missing_package("jinja2", "a report", extra="report")
    require_file(report, LEAST)
    if output is not None and report.absolute() == output.absolute():
        raise UsageError(f"--report and --output both name {report}")


def require_data(text: str) -> None:
    """Raise an error if the data does not exist or is of a kind that cannot be read."""
    path = Path(text)
    if path.is_dir():
        return
    if path.suffix == ".npz":
        _require_file(text, "file")
    elif is_reference(text):
        require_reference(text, "data")
    else:
        raise UsageError(
            f"{text} cannot be read as data" if path.exists() else f"no such data: {text}",
            expected="file.py:loader or package.module:loader, a folder of images, or an .npz file",
        )


def _require_file(path: str | Path, kind: str) -> None:
    if not Path(path).is_file():
        raise UsageError(f"no such {kind}: {path}", hint=f"looked in {Path.cwd()}")
