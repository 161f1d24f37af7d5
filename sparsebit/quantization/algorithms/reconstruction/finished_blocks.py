"""What a killed reconstruction resumes from: the quantizers of every finished block, in a folder each."""

from __future__ import annotations

import hashlib
import itertools
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from sparsebit.errors import damaged
from sparsebit.processes import gather_values, rank
from sparsebit.quantization.algorithms.base import Job
from sparsebit.quantization.algorithms.reconstruction.blocks import Block
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.storage import MANIFEST, ArtifactError, read_folder, require_place, write_folder

KIND, VERSION = "reconstructed block", 3


class FinishedBlocks:
    """The finished blocks of one step. Without a folder in the job, none is kept and none is found."""

    def __init__(self, job: Job, step: str, settings: Mapping[str, Any], blocks: Sequence[Block]) -> None:
        """Raises at once if a folder of someone else is in the way, and not when the first block is finished."""
        self._job, self._step, self._blocks = job, step, blocks
        self._places = (
            [] if job.folder is None else [job.folder / f"{step}-{i:04d}" for i in range(len(blocks))]
        )
        for place in self._places:
            require_place(place)
        self._identity = _identify(job, step, settings) if self._places else ""

    def write(self, index: int) -> None:
        """Keep a finished block."""
        if self._places and rank() == 0:  # all processes have the same to write
            state = {key: tensor.detach().cpu().contiguous() for key, tensor in self._state(index).items()}
            content = {"identity": self._identity}
            write_folder(self._places[index], KIND, VERSION, content, {"state": state})

    def restore(self, index: int) -> bool:
        """Read a finished block, if all processes find it: none writes before all have checked."""
        kept = self._read(index) if self._places else None
        found = gather_values(kept is not None)
        if kept is None or not all(found):
            return False
        for name, quantizer in self._quantizers(index).items():
            prefix = f"{name}/"
            own = {key.removeprefix(prefix): one for key, one in kept.items() if key.startswith(prefix)}
            quantizer.load_state_dict(own)
        return True

    def _quantizers(self, index: int) -> dict[str, Quantizer]:
        block, job = self._blocks[index], self._job
        found = {name: job.quantizers[name] for name in block.weights}
        for node in block.nodes:
            if node.op == "call_module":
                module = job.gm.get_submodule(str(node.target))
                if isinstance(module, Quantizer) and module.side == "A":
                    found[module.name] = module
        return found

    def _state(self, index: int) -> dict[str, Tensor]:
        return {
            f"{name}/{key}": tensor
            for name, quantizer in self._quantizers(index).items()
            for key, tensor in quantizer.state_dict().items()
        }

    def _read(self, index: int) -> Mapping[str, Tensor] | None:
        """The saved state of a block, if it is the same block of the same run."""
        place = self._places[index]
        if not (place / MANIFEST).exists():
            return None
        try:
            content, tensors = read_folder(place, KIND, VERSION)
            made_for, state = content.text("identity"), tensors.get("state", {})
            if made_for == self._identity and (problem := self._find_problem(index, state)) is not None:
                raise damaged(place, problem)
        except ArtifactError as error:  # damaged, or not ours; writing fails if it cannot be replaced
            warnings.warn(f"{self._step} computes this block again: {error.message}", stacklevel=2)
            return None
        if made_for == self._identity:
            return state
        if index == 0:  # the rest is of the same work
            warnings.warn(
                f"{self._step} starts from the beginning: the blocks in {self._job.folder} come from another model, "
                "other data or other settings, and are replaced",
                stacklevel=2,
            )
        return None

    def _find_problem(self, index: int, state: Mapping[str, Tensor]) -> str | None:
        """The problem of a saved state that does not fit the quantizers of a block."""
        sizes = {name: tensor.numel() for name, _, tensor in self._job.weights()}
        expected = self._state(index)
        if different := state.keys() ^ expected.keys():
            return f"{min(different)!r} is missing, or is not expected"
        for key, tensor in expected.items():
            name, _, part = key.rpartition("/")
            found = state[key]
            fits = found.shape == tensor.shape or (part == "up" and found.numel() in (0, sizes[name]))
            if not fits or found.dtype != tensor.dtype:
                return f"{key!r} has another shape or type"
            if found.is_floating_point() and not bool(found.isfinite().all()):
                return f"{key!r} holds NaN or infinite values"
            if part == "scale" and not bool((found > 0).all()):
                return f"{key!r} holds scales that are not above 0"
        return None


def _identify(job: Job, step: str, settings: Mapping[str, Any]) -> str:
    """A digest of what the result depends on: settings, graph, weights, grids and calibration data."""
    specs = {name: str(quantizer.spec) for name, quantizer in job.quantizers.items()}
    said = [VERSION, step, settings, str(job.gm.graph), specs]
    digest = hashlib.sha256(json.dumps(said, default=str).encode())
    for leaf in itertools.chain(job.gm.state_dict().values(), *map(pytree.tree_leaves, job.inputs)):
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            digest.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
