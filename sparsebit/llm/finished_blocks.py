"""Finished blocks, saved in a folder so that a stopped run resumes after the last one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.config.llm import LlmConfig
from sparsebit.errors import SparsebitError, advised, damaged
from sparsebit.llm.blocks.measure import stored
from sparsebit.llm.folders.source import WeightSource
from sparsebit.llm.language_model import Made
from sparsebit.llm.packed.stored import from_stored, to_stored
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics.finite import is_finite
from sparsebit.processes import gather_values, rank
from sparsebit.storage import MANIFEST, Fields, read_folder, write_folder

KIND, VERSION = "language model block", 4


class FinishedBlock(NamedTuple):
    """The packed weights of a block, and its other parameters by their names inside it."""

    made: list[Made]
    floats: Mapping[str, Tensor]

    def restore(self, block: nn.Module, name: str) -> None:
        """Load all parameters into the block of this name."""
        parameters = dict(block.named_parameters())
        for key, values in self.floats.items():
            parameters[key].data.copy_(values)
        for one in self.made:
            if one.held is not None:
                stored(parameters, _matrix(one, name)).copy_(one.held.numbers())

    def find_problem(self, block: nn.Module, name: str) -> str | None:
        """What does not fit the block of this name; None if every parameter fits."""
        parameters = dict(block.named_parameters())
        for one in self.made:
            try:
                matrix = _matrix(one, name)
                room = stored(parameters, matrix).shape
            except (ValueError, LookupError):
                return f"the block has no matrix {one.name!r}"
            if one.held is not None and one.held.shape != room:
                return f"{one.name!r} has another shape"
        if different := set(self.floats) ^ (set(parameters) - _packed(self.made, name)):
            return f"{min(different)!r} is missing or occurs twice"
        for key, values in self.floats.items():
            if values.shape != parameters[key].shape or not values.is_floating_point():
                return f"{key!r} has another shape or type"
            if not is_finite(values):
                return f"{key!r} holds NaN or infinite values"
        return None


def _matrix(one: Made, block: str) -> Matrix:
    return Matrix.parse(one.name.removeprefix(f"{block}."), transposed=one.transposed)


def _packed(made: Sequence[Made], block: str) -> set[str]:
    """Parameters whose matrices are all packed."""
    floats = {_matrix(one, block).name for one in made if one.held is None}
    return {_matrix(one, block).name for one in made} - floats


class FinishedBlocks:
    """One subfolder for each finished block; without a folder, nothing is saved."""

    def __init__(self, folder: Path | None, run: str) -> None:
        self._folder, self._run = folder, run
        self._weights = ""  # digest of the float weights of the last requested block

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
        seen = hashlib.sha256(config_text(settings).encode())
        if sequences is not None:
            seen.update(sequences.numpy().tobytes())
        seen.update(digest_outside_blocks(source).encode())  # a block's numbers count when it is read
        return cls(Path(folder), seen.hexdigest())

    def read(self, index: int, name: str, block: nn.Module) -> FinishedBlock | None:
        """The saved result for a block with these float weights, or None; all of several processes must find it."""
        if self._folder is None:
            return None
        self._weights = _digest(block)
        place = self._folder / f"block-{index:04d}"
        if not all(gather_values((place / MANIFEST).exists())):
            return None
        with advised(f"remove {place}; that block is then computed again"):
            found = self._read(place, device_of(block))
            if (problem := found.find_problem(block, name)) is not None:
                raise damaged(place, problem)
        return found

    def _read(self, place: Path, device: torch.device) -> FinishedBlock:
        content, found = read_folder(place, KIND, VERSION)
        if content.text("run") != self._run or content.text("float weights") != self._weights:
            raise SparsebitError(
                f"{os.fspath(place)!r} belongs to another run",
                expected="the same model, data and config as now",
                hint=f"choose another folder, or remove {place.parent}",
            )
        tensors = {
            kind: {key: one.to(device) for key, one in of_kind.items()} for kind, of_kind in found.items()
        }
        made = []
        described = Fields.each(content.value("matrices"), str(place))
        packed = from_stored(tensors.get("weights", {}), described)
        for one, _ in content.section("how").items():
            how = content.section("how").section(one)
            loss, tokens, remark = how.number("loss"), how.integer("tokens"), how.text("remark")
            made.append(Made(one, packed.get(one), loss, tokens, remark, how.flag("transposed")))
        return FinishedBlock(made, tensors.get("floats", {}))

    def write(self, index: int, name: str, made: Sequence[Made], block: nn.Module) -> None:
        """Save a finished block: its packed weights, and its other parameters, which a method may have changed."""
        if self._folder is None or rank():  # all processes would write the same
            return
        tensors, matrices = to_stored({one.name: one.held for one in made if one.held is not None})
        how = {one.name: one._asdict() for one in made}
        for described in how.values():
            del described["name"], described["held"]
        content = {"run": self._run, "float weights": self._weights, "matrices": matrices, "how": how}
        packed = _packed(made, name)
        floats = {
            key: parameter.data.contiguous()
            for key, parameter in block.named_parameters()
            if key not in packed
        }
        write_folder(
            self._folder / f"block-{index:04d}",
            KIND,
            VERSION,
            content,
            {"weights": tensors, "floats": floats},
        )


def config_text(settings: LlmConfig) -> str:
    """A config as one text that is the same for every equal config."""
    return json.dumps(settings.to_dict(), sort_keys=True, default=str)


def digest_outside_blocks(source: WeightSource) -> str:
    """Of names and shapes of all parameters, and of the numbers of those that are in no block."""
    return _digest(source.model, without=tuple(f"{name}." for name in source.blocks))


def _digest(module: nn.Module, without: tuple[str, ...] = ()) -> str:
    """Digest of a module's parameters: names, shapes, and values unless the name begins with one of ``without``."""
    seen = hashlib.sha256()
    for name, parameter in module.named_parameters():
        seen.update(f"{name} {tuple(parameter.shape)}".encode())
        if not name.startswith(without):
            seen.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return seen.hexdigest()
