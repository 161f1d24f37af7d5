"""The state of a search in a folder, from which a killed run resumes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError, advised
from sparsebit.graph.capture.call.structure import tensors_of
from sparsebit.recipes.goals import Measured
from sparsebit.recipes.trial import Trial
from sparsebit.storage import Fields, write_text
from sparsebit.storage.json_text import canonical, read_json
from sparsebit.storage.text_file import read_bytes
from sparsebit.storage.typed import to_plain

STATE, VERSION = "search.json", 4
MOST_BYTES = 2**28


class State:
    """The float model's numbers and every trial, written after each trial; with None as folder, kept in memory.

    One file that is replaced in one step: if the process is killed, the folder has the last state or the one before.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, asked: Mapping[str, Any]) -> None:
        self.file = Path(folder) / STATE if folder is not None else None
        self.asked = dict(asked)
        self.base: Measured | None = None
        self.trials: dict[str, Trial] = {}
        if self.file is not None and self.file.exists():
            with advised(f"choose another folder, or remove {self.file} to start again"):
                self._load(self.file)

    def _load(self, file: Path) -> None:
        try:
            content = Fields(read_json(read_bytes(file, MOST_BYTES), file), str(file))
        except OSError as error:
            raise SparsebitError(
                f"{file} cannot be read: {error.strerror}", hint="choose another folder"
            ) from None
        if content.integer("version") != VERSION:
            raise SparsebitError(f"{file} was written by another version", hint="choose another folder")
        if content.text("digest") != _digest_content(content.data):
            raise SparsebitError(f"{file} was changed after it was written", hint="choose another folder")
        asked = content.section("asked").data
        # Through JSON, like the data in the file.
        wanted = json.loads(json.dumps(self.asked))
        if different := [key for key in wanted if asked.get(key) != wanted[key]]:
            raise SparsebitError(
                f"{file.parent} contains a search with a different {' and '.join(different)}",
                expected="; ".join(f"{key}: {asked.get(key)}"[:100] for key in different),
                got="; ".join(f"{key}: {self.asked[key]}"[:100] for key in different),
                hint="choose another folder, or remove this one to start again",
            )
        self.base = Measured.read(content.section("base")) if content.value("base") is not None else None
        trials = [Trial.read(fields) for fields in Fields.each(content.value("trials"), str(file))]
        self.trials = {trial.name: trial for trial in trials}

    def add(self, trial: Trial) -> None:
        """Add a trial."""
        self.trials[trial.name] = trial
        self.write()

    def write(self) -> None:
        """Write the state to the folder, completely or not at all."""
        if self.file is None:
            return
        content = {
            "version": VERSION,
            "asked": self.asked,
            "base": to_plain(self.base),
            "trials": to_plain(self.trials.values()),
        }
        text = json.dumps(content | {"digest": _digest_content(content)}, indent=1)
        write_text(self.file, text + "\n")


def digest_model(model: nn.Module) -> str:
    """A digest of the names and numbers of a model's state."""
    return _digest({name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)})


def digest_data(batches: Sequence[Any]) -> str:
    """A digest of the numbers of all batches."""
    return _digest({str(index): tensor for index, tensor in enumerate(tensors_of(list(batches)))})


def _digest_content(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical({k: v for k, v in content.items() if k != "digest"})).hexdigest()


def _digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
