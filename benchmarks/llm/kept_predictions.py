"""Predictions of the float model, computed once and kept in a folder: each row of a table is compared with them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from sparsebit.batches.calls import device_of
from sparsebit.llm.evaluate.perplexity import log_probabilities


class KeptPredictions:
    """Stands in for a model where only its predictions are asked for, on the same rows again and again.

    They are kept as logarithms in half precision: with 3 digits each, a divergence is exact to about 1e-5.
    """

    def __init__(self, model: nn.Module, folder: Path) -> None:
        self._model, self._folder = model, folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, rows: Tensor) -> Tensor:
        """The logarithms of the next-token distributions, [batch, length, vocabulary]."""
        name = hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()[:24]
        place = self._folder / f"{name}.pt"
        if not place.is_file():
            draft = place.with_suffix(f".{os.getpid()}")  # other processes may read the folder
            torch.save(log_probabilities(self._model, rows.to(device_of(self._model))).half().cpu(), draft)
            draft.replace(place)
        found: Tensor = torch.load(place, mmap=True, weights_only=True)
        return found.to(rows.device)
