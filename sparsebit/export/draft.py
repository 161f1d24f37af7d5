"""Write a model to disk whole, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from sparsebit.export.errors import ExportError
from sparsebit.runtime.packages import require

LARGEST_FILE = 1_900_000_000  # bytes of weights in one protobuf message, which ends at 2 GiB


class Draft:
    """A model on disk that nobody sees yet: in a hidden folder beside the place it is meant for.

    ``publish`` moves the files to their place, the model last; leaving the block without it removes them.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ExportError("there is no such folder", where=str(path.parent), hint="create it first")
        self.path = path
        self.folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        self.files: list[Path] = []

    def __enter__(self) -> Draft:
        try:
            self.folder.mkdir()
            return self
        except BaseException:  # an interrupt may come right after it was made
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def file(self) -> Path:
        """Where the model is until it is published."""
        return self.folder / self.path.name

    def write(self, model: Any, *, external: bool | None = None) -> None:
        """Write an ``onnx_ir`` model; the weights go to ``<name>.data`` where one file cannot hold them."""
        onnx, ir = require("onnx"), require("onnx_ir")
        tensors = [value.const_value for value in model.graph.initializers.values()]
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        if external or (external is None and size > LARGEST_FILE):
            ir.save(model, self.file, external_data=f"{self.path.name}.data")
        else:
            self.file.write_bytes(ir.serde.serialize_model(model).SerializeToString())
        self.files = sorted(self.folder.iterdir(), key=lambda file: file == self.file)  # the model last
        onnx.checker.check_model(str(self.file))

    def publish(self) -> tuple[Path, ...]:
        """Move everything to its place; returns the files, the model first."""
        placed = []
        for file in self.files:
            os.replace(file, self.path.with_name(file.name))
            placed.append(self.path.with_name(file.name))
        stale = self.path.with_name(f"{self.path.name}.data")
        if stale not in placed:
            stale.unlink(missing_ok=True)
        shutil.rmtree(self.folder)
        return tuple(reversed(placed))
