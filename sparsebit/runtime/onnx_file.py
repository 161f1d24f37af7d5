"""An ONNX file as a function from tensors to tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsebit.errors import SparsebitError
from sparsebit.runtime.arrays import as_array
from sparsebit.runtime.packages import require
from sparsebit.runtime.session import open_session

if TYPE_CHECKING:
    from torch import Tensor


class OnnxFile:
    """Called like the model, with its tensors in order; returns the first output, or all of them if several.

    Args:
        path: the file.
        threads: how many threads to use; by default the runtime decides.
        runtime: a name in ``sparsebit.runtime.RUNTIMES``.
        isolated: as in ``open_session``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        runtime: str = "onnxruntime",
        isolated: bool = False,
    ) -> None:
        self.path = Path(path)
        self.session = open_session(self.path, runtime=runtime, threads=threads, isolated=isolated)
        self.input_names = tuple(value.name for value in self.session.inputs)
        self.output_names = self.session.output_names

    @property
    def bytes(self) -> int:
        """Size on disk, weights in a second file included."""
        files = (self.path, *map(self.path.with_name, weight_files(self.path)))
        return sum(file.stat().st_size for file in files)

    def feed(self, *tensors: Tensor, **named: Tensor) -> dict[str, Any]:
        """The arrays of a call by the names of the file: those given by name, and the others in order."""
        free = [name for name in self.input_names if name not in named]
        if len(free) != len(tensors) or not named.keys() <= set(self.input_names):
            raise SparsebitError(
                f"the inputs do not fit {self.path}",
                expected=", ".join(self.input_names),
                got=", ".join([f"{len(tensors)} in order", *(f"{name} by name" for name in named)]),
            )
        given = [*zip(free, tensors, strict=True), *named.items()]
        return {name: as_array(tensor) for name, tensor in given}

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        """The call without conversions, for timing."""
        return self.session.run(feed)

    def example(self, batch: int = 1) -> dict[str, Any]:
        """Random arrays of the sizes that the file declares; free dimensions get the size ``batch``."""
        generator = np.random.default_rng(0)
        made = {}
        for value in self.session.inputs:
            shape = [size if isinstance(size, int) else batch for size in value.shape]
            floating = np.issubdtype(value.dtype, np.floating)
            made[value.name] = (
                generator.standard_normal(shape).astype(value.dtype)
                if floating
                else np.ones(shape, value.dtype)
            )
        return made

    def __call__(self, *tensors: Tensor, **named: Tensor) -> Any:
        """Run it on tensors, in order or by the names of the file."""
        import torch  # here, since the process that isolates sessions does without

        found = self.run(self.feed(*tensors, **named))
        outputs = [torch.from_numpy(found[name]) for name in self.output_names]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def weight_files(path: str | os.PathLike[str]) -> set[str]:
    """The names of the files beside a model that hold its weights; empty if there is no such model."""
    onnx = require("onnx")
    try:
        model = onnx.load(os.fspath(path), load_external_data=False)
    except Exception:  # protobuf's errors have no common base; an unreadable file refers to no other file
        return set()
    entries = (entry for tensor in model.graph.initializer for entry in tensor.external_data)
    return {Path(entry.value).name for entry in entries if entry.key == "location"}
