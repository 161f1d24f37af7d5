"""Files, folders and code that the typed words name: are they there? Answered before torch is loaded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparsebit.cli.command import UsageError
from sparsebit.cli.reference import is_reference, require_reference
from sparsebit.storage import MANIFEST

_CODE = ("model", "metric", "loss", "finetune")  # arguments that name an object of the user's code
_FILES = ("weights", "file")
_FOLDERS = ("pruned", "quantized")
_DATA = ("data", "test")


def require_named_things(arguments: argparse.Namespace) -> None:
    """Refuse what is not there. What is in the files is looked at later, by the part that reads them."""

    def given(names: tuple[str, ...]) -> list[tuple[str, Any]]:
        return [(name, value) for name in names if (value := getattr(arguments, name, None))]

    for kind, reference in given(_CODE):
        require_reference(reference, "function" if kind == "finetune" else kind)
    for what in getattr(arguments, "timed", ()):
        if what.endswith(".onnx"):
            _require_file(what, "file")
        else:
            require_reference(what, "model")
    for kind, path in given(_FILES):
        _require_file(path, "file of weights" if kind == "weights" else "file")
    for kind, folder in given(_FOLDERS):
        if not Path(folder, MANIFEST).is_file():
            maker = "prune" if kind == "pruned" else "quantize"
            raise UsageError(
                f"{folder} is not a saved model" if Path(folder).exists() else f"no such folder: {folder}",
                expected=f"a folder that `sparsebit {maker}` wrote, with {MANIFEST} in it",
            )
    for _, source in given(_DATA):
        require_data(source)


def require_data(text: str) -> None:
    """Refuse a source of data that is not there, or of a kind that cannot be read."""
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
