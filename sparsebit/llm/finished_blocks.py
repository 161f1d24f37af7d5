"""Finished blocks, kept in a folder so that a run that was stopped resumes after the last of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.config.llm import LlmConfig
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.measure import stored
from sparsebit.llm.language_model import Made
from sparsebit.llm.packed.stored import from_stored, to_stored
from sparsebit.llm.source import WeightSource
from sparsebit.llm.weights.uses import Matrix
from sparsebit.processes import gather_values, rank
from sparsebit.storage import Fields, read_folder, write_folder

KIND, VERSION = "language model block", 4


class FinishedBlock(NamedTuple):
    """The packed weights of a block, and its other parameters by their names inside it."""

    made: list[Made]
    floats: Mapping[str, Tensor]

    def restore(self, block: nn.Module, name: str) -> None:
        """Put the numbers of all parameters into the block of this name."""
        parameters = dict(block.named_parameters())
        for key, values in self.floats.items():
            if key in parameters and values.shape == parameters[key].shape:
                parameters[key].data.copy_(values)
        for one in self.made:
            if one.held is not None:
                matrix = Matrix.parse(one.name.removeprefix(f"{name}."), transposed=one.transposed)
                stored(parameters, matrix).copy_(one.held.numbers())


class FinishedBlocks:
    """One subfolder for each finished block; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, run: str) -> None:
        self._folder, self._run = folder, run
        self._weights = ""  # of the float block that was last asked for

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | None,
        settings: LlmConfig,
        sequences: Tensor | None,
        source: WeightSource,
    ) -> FinishedBlocks:
        """The blocks of an earlier run with the same config, data and model; blocks of any other are refused."""
        if folder is None:
            return cls(None, "")
        said = json.dumps(settings.to_dict(), sort_keys=True, default=str)
        seen = hashlib.sha256(said.encode())
        if sequences is not None:
            seen.update(sequences.numpy().tobytes())
        for name, parameter in source.model.named_parameters():
            seen.update(f"{name}{tuple(parameter.shape)}".encode())
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        return cls(place, seen.hexdigest())

    def read(self, index: int, block: nn.Module) -> FinishedBlock | None:
        """What a block, still in float, became in an earlier run, or None; of several processes all must find it."""
        if self._folder is None:
            return None
        self._weights = _digest(block)
        place = self._folder / f"block-{index:04d}"
        if not all(gather_values(place.exists())):
            return None
        content, tensors = read_folder(place, KIND, VERSION)
        if (content.text("run"), content.text("float weights")) != (self._run, self._weights):
            raise SparsebitError(
                f"{os.fspath(place)!r} belongs to another run",
                expected="the same model, data and config as now",
                hint="choose another folder, or remove this one",
            )
        made = []
        described = Fields.each(content.value("matrices"), str(place))
        packed = from_stored(tensors.get("weights", {}), described)
        for name, _ in content.section("how").items():
            how = content.section("how").section(name)
            loss, tokens, remark = how.number("loss"), how.integer("tokens"), how.text("remark")
            made.append(Made(name, packed.get(name), loss, tokens, remark, how.flag("transposed")))
        return FinishedBlock(made, tensors.get("floats", {}))

    def write(self, index: int, made: Sequence[Made], block: nn.Module) -> None:
        """Keep a finished block: its packed weights, and its other parameters, which a method may have changed."""
        if self._folder is None or rank():  # all processes have the same to write
            return
        tensors, matrices = to_stored({one.name: one.held for one in made if one.held is not None})
        how = {one.name: one._asdict() for one in made}
        for described in how.values():
            del described["name"], described["held"]
        content = {"run": self._run, "float weights": self._weights, "matrices": matrices, "how": how}
        packed = {one.name.partition("[")[0] for one in made if one.held is not None}
        floats = {
            name: parameter.data.contiguous()
            for name, parameter in block.named_parameters()
            if not any(one.endswith(f".{name}") for one in packed)
        }
        write_folder(
            self._folder / f"block-{index:04d}",
            KIND,
            VERSION,
            content,
            {"weights": tensors, "floats": floats},
        )

    def remove(self) -> None:
        """The model is complete: its blocks are no longer needed."""
        if self._folder is None:
            return
        gather_values(None)  # all processes have read what they need
        if not rank():
            for place in self._folder.glob("block-[0-9][0-9][0-9][0-9]"):
                shutil.rmtree(place, ignore_errors=True)


def _digest(block: nn.Module) -> str:
    """Of all numbers of a block: a model of the same shapes with other weights is another run."""
    seen = hashlib.sha256()
    for parameter in block.parameters():
        seen.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return seen.hexdigest()
