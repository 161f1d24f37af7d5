"""GPTQModel, in a process of its own: importing it changes transformers and the environment variables."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import load_file
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.rounding import Rounding

PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


class GptqFolder:
    """A folder that GPTQModel loads for the predictions; its matrices are then in a temporary folder, unpacked."""

    longest: int | None = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answer = Path(mkdtemp(prefix=".gptqmodel-", dir=path.parent))
        weakref.finalize(self, shutil.rmtree, self._answer, ignore_errors=True)

    def weight(self, name: str) -> Tensor:
        """Unpacked by GPTQModel's own layer, in float32; it loads each expert as separate layers."""
        stack, _, expert = name.removesuffix("]").partition("[")
        if not expert:
            return self._read(name.removesuffix(".weight"))
        holder, _, key = stack.rpartition(".")
        return torch.cat([self._read(f"{holder}.{expert}.{part}") for part in PARTS[key]])

    def _read(self, layer: str) -> Tensor:
        place = self._answer / f"{layer}.safetensors"
        if not place.is_file():
            raise SparsebitError(f"GPTQModel has loaded no packed layer {layer!r}")
        return load_file(place)["found"]

    def rounding(self, name: str) -> Rounding | None:
        """Weights are unpacked and multiplied in float."""
        return None

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """One pass over all ids."""
        ask(self._path, self._answer, ids)
        return load_file(self._answer / "log_probabilities.safetensors")["found"]


def ask(path: Path, folder: Path, ids: Tensor) -> None:
    """Load a GPTQ folder in a separate process; gptqmodel_child.py describes what it writes to ``folder``."""
    # On one or two cores GPTQModel starts one worker, and then asks for two. Its layers compile themselves.
    environment = {"GPTQMODEL_CPU_WORKERS": "2", **os.environ, "TORCHDYNAMO_DISABLE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    child = subprocess.run(
        [sys.executable, "-P", "-m", "sparsebit.llm.engines.gptqmodel_child"],
        input=json.dumps(
            {
                "path": str(path),
                "folder": str(folder),
                "threads": torch.get_num_threads(),
                "ids": ids.tolist(),
            }
        ),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if child.returncode:
        lines = [line for line in child.stderr.splitlines() if "rror" in line]
        said = lines[-1] if lines else f"exit code {child.returncode}"
        raise SparsebitError("GPTQModel cannot run the file", got=said[:200], where=str(path))


# Where it loads a folder in float16, embeddings and norms are rounded.
GPTQMODEL = Engine("GPTQModel", ("gptqmodel",), 1e-4, GptqFolder)
