"""An ONNX file as a function from tensors to tensors, in ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.errors import SparsebitError

_TYPES = {"float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_}


class OnnxFile:
    """Called like the model, with its tensors in order; returns the first output, or all of them if several.

    Args:
        path: the file.
        threads: to compute with; by default as many as ONNX Runtime takes.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None) -> None:
        try:
            import onnxruntime as ort
        except ImportError:
            raise SparsebitError(
                "ONNX Runtime is not installed", hint="pip install 'sparsebit[onnx]'"
            ) from None
        self.path = Path(path)
        if not self.path.is_file():
            raise SparsebitError(f"no such file: {self.path}", hint=f"looked in {Path.cwd()}")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = ort.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own exceptions have no common base
            raise SparsebitError(f"{self.path} does not open in ONNX Runtime: {_first_line(error)}") from None
        self.names = [value.name for value in self.session.get_inputs()]

    @property
    def bytes(self) -> int:
        """Size on disk, weights in a second file included."""
        beside = self.path.with_name(f"{self.path.name}.data")
        return self.path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)

    def feed(self, *tensors: Tensor, **named: Tensor) -> dict[str, Any]:
        """The arrays of a call by the names of the file: those given by name, and the others in order."""
        free = [name for name in self.names if name not in named]
        if len(free) != len(tensors) or not named.keys() <= set(self.names):
            raise SparsebitError(
                f"the inputs do not fit {self.path}",
                expected=", ".join(self.names),
                got=", ".join([f"{len(tensors)} in order", *(f"{name} by name" for name in named)]),
            )
        return {name: tensor.numpy() for name, tensor in [*zip(free, tensors, strict=True), *named.items()]}

    def run(self, feed: dict[str, Any]) -> list[Any]:
        """The bare call, for timing."""
        found: list[Any] = self.session.run(None, feed)
        return found

    def example(self, batch: int = 1) -> dict[str, Any]:
        """A feed of the sizes that the file declares; free ones are ``batch``."""
        chance = np.random.default_rng(0)
        made = {}
        for value in self.session.get_inputs():
            shape = [size if isinstance(size, int) else batch for size in value.shape]
            kind = value.type.removeprefix("tensor(").removesuffix(")")
            dtype: Any = _TYPES.get(kind) or getattr(np, kind, np.int64)
            floating = np.issubdtype(dtype, np.floating)
            made[value.name] = (
                chance.standard_normal(shape).astype(dtype) if floating else np.ones(shape, dtype)
            )
        return made

    def __call__(self, *tensors: Tensor, **named: Tensor) -> Any:
        """Run it on tensors, in order or by the names of the file."""
        outputs = [torch.from_numpy(array) for array in self.run(self.feed(*tensors, **named))]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
