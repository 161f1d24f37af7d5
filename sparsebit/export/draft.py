"""Write a model to disk completely, or not at all."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

from sparsebit.errors import ExportError
from sparsebit.runtime.onnx_file import weight_files
from sparsebit.runtime.packages import require
from sparsebit.storage.drafts import FolderDraft, sync
from sparsebit.storage.place import require_room, writing

LARGEST_FILE = 1_900_000_000  # bytes of weights in one protobuf message, whose limit is 2 GiB


class ModelDraft(FolderDraft):
    """A model on disk under a hidden name, in a folder beside the place it is meant for.

    ``publish`` moves it to its place in one step; leaving the block without ``publish`` removes it. What a killed
    process left is removed by the next export to the same folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ExportError("there is no such folder", where=str(path.parent), hint="create it first")
        super().__init__(path)
        self.path = path

    @property
    def files(self) -> tuple[Path, ...]:
        """The written files, the model first."""
        return tuple(sorted(self.folder.iterdir(), key=lambda file: file != self.file))

    def write(self, model: Any, *, external: bool | None = None) -> None:
        """Write an ``onnx_ir`` model; the weights go to ``<name>.data`` if one file cannot hold them.

        If there is such a file, they go to ``<name>.2.data`` and so on: it belongs to the model in this place, until
        the new one has taken its place, or to a model that was renamed.
        """
        onnx, ir = require("onnx"), require("onnx_ir")
        tensors = [value.const_value for value in model.graph.initializers.values()]
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        require_room(self.path, self.folder, size)
        with writing(self.path):
            if external or (external is None and size > LARGEST_FILE):
                names = (
                    f"{self.path.name}{n}.data"
                    for n in itertools.chain([""], map(".{}".format, itertools.count(2)))
                )
                name = next(name for name in names if not self.path.with_name(name).exists())
                ir.save(model, self.file, external_data=name)
            else:
                self.file.write_bytes(ir.serde.serialize_model(model).SerializeToString())
        onnx.checker.check_model(str(self.file))

    def publish(self) -> tuple[Path, ...]:
        """Move the model to its place; returns the files, the model first. The switch is a single move."""
        placed = [self.path.with_name(file.name) for file in self.files]
        ours = re.compile(rf"{re.escape(self.path.name)}(\.\d+)?\.data")
        others = [file for file in self.path.parent.iterdir() if ours.fullmatch(file.name)]
        before = weight_files(self.path) if others else set()  # of the model that this one replaces
        with writing(self.path):
            for file, place in reversed(list(zip(self.files, placed, strict=True))):
                sync(file)
                os.replace(file, place)
        for other in others:
            if other.name in before and other not in placed:
                other.unlink(missing_ok=True)
        return tuple(placed)
