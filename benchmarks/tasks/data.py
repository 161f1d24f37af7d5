"""Where the data sets and trained weights are, and what to say when they are not there."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError

VARIABLE = "SPARSEBIT_DATA"


class DataError(SparsebitError):
    """A data set, a checkpoint or a package that a task needs is missing."""


def data_folder() -> Path:
    """The folder that the environment variable SPARSEBIT_DATA names."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise DataError("the tasks need real data", hint=f"set {VARIABLE}=/path/to/data")
    folder = Path(named).expanduser().resolve()
    if not folder.is_dir():
        raise DataError(
            "the data folder is not there",
            where=str(folder),
            hint=f"correct {VARIABLE}, which is set to {named!r}",
        )
    return folder


def find_file(folder: Path, name: str) -> Path:
    """The path of one data file, which must exist."""
    path = folder / name
    if not path.is_file():
        there = (
            ", ".join(sorted(found.name for found in folder.iterdir())) if folder.is_dir() else "no folder"
        )
        raise DataError(
            f"the data file {name} is missing",
            where=str(folder),
            got=there,
            hint="copy the file there, or point SPARSEBIT_DATA at the folder that has it",
        )
    return path


def load_checkpoint(folder: Path, name: str) -> dict[str, Tensor]:
    """A state dict saved as plain tensors."""
    state: dict[str, Tensor] = torch.load(find_file(folder, name), map_location="cpu", weights_only=True)
    return state
