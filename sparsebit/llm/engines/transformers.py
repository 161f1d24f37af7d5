"""transformers, which loads compressed-tensors files with the package of that name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsebit.llm.blocks.calls import outputs_of, run_model
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.rounding import Rounding


class LoadedModel:
    """A module that ``from_pretrained`` made in float32; no code in the folder is run."""

    longest: int | None = None

    def __init__(self, path: Path) -> None:
        import transformers

        config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        kind: Any = getattr(transformers, (config.architectures or ["AutoModelForCausalLM"])[0])
        self._model = kind.from_pretrained(path, dtype=torch.float32).eval()

    @torch.no_grad()
    def log_probabilities(self, ids: Tensor) -> Tensor:
        """One pass over all ids."""
        return outputs_of(run_model(self._model, ids[None]))[0].double().log_softmax(-1)

    def rounding(self, name: str) -> Rounding | None:
        """Weights are unpacked and multiplied in float."""
        return None

    def weight(self, name: str) -> Tensor:
        """The weight, which compressed-tensors unpacks in the first call of ``log_probabilities``."""
        name, _, expert = name.removesuffix("]").partition("[")
        path, _, key = name.rpartition(".")
        found: Tensor = getattr(self._model.get_submodule(path), key)
        return (found[int(expert)] if expert else found).detach().float()


# Its arithmetic is that of torch.
TRANSFORMERS = Engine(
    "transformers with compressed-tensors", ("transformers", "compressed_tensors"), 1e-6, LoadedModel
)
