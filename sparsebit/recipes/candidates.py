"""The models of a search: pruned by each ratio once, and the configs they are first quantized with."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from sparsebit.analysis import Curvature, choose_bits, sensitivity
from sparsebit.analysis.bits.sensitivity import Sensitivity
from sparsebit.batches import Call, device_of
from sparsebit.config import QConfig, SConfig, load_qconfig, load_sconfig
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.recipes.recipe import Finetune, Recipe, prune_by, quantize_by
from sparsebit.recipes.space import Structure
from sparsebit.sparse import load as load_pruned
from sparsebit.sparse import save as save_pruned
from sparsebit.storage import MANIFEST
from sparsebit.targets import TARGETS

# The errors of a model that cannot be compressed in this way.
CANNOT = (SparsebitError, RuntimeError, NotImplementedError)

PRUNE: Mapping[str, Any] = {
    "SPARSER": {
        "TYPE": "structured",
        "STRATEGY": "activation_norm",
        "RATIO": 0.5,
        "TARGET": "macs",
        "SCOPE": "global",
    }
}


@dataclass(kw_only=True)
class Candidates:
    """Creates the models and configs of trials, and keeps those that several trials share."""

    model: nn.Module
    batches: Sequence[Any]
    example: Call
    target: str
    finetune: Finetune | None
    prune: SConfig
    ratios: Sequence[float]
    folder: Path | None
    seed: int

    def __post_init__(self) -> None:
        self.in_finetune = False  # whether the user's code is running
        self._pruned: dict[float, nn.Module] = {0.0: self.model}
        self._sensitivity: dict[float, Sensitivity] = {}

    def recipe(self, structure: Structure, config: QConfig, name: str) -> Recipe:
        """The recipe for a structure and a config."""
        prune = load_sconfig(self.prune, [f"SPARSER.RATIO={structure.ratio}"]) if structure.ratio else None
        return Recipe(
            quantize=config,
            prune=prune,
            reestimate=prune is not None,
            finetune=prune is not None and self.finetune is not None,
            seed=self.seed,
            name=name,
        )

    def pruned(self, ratio: float) -> nn.Module:
        """The pruned model, created once; a trained one is kept in the folder, because training takes long."""
        if ratio not in self._pruned:
            base = load_qconfig(TARGETS[self.target].preset)
            recipe = self.recipe(Structure(ratio=ratio, weights="8"), base, "")
            kept = self.folder / f"pruned_{round(100 * ratio)}" if self.folder and self.finetune else None
            if kept is not None and (kept / MANIFEST).is_file():
                self._pruned[ratio] = load_pruned(kept, self.model, self.example).eval()
            else:
                finetune = self._train if self.finetune else None
                small = prune_by(recipe, self.model, self.batches, self.example, finetune=finetune)
                if kept is not None:
                    save_pruned(small, kept)
                self._pruned[ratio] = small
        return self._pruned[ratio]

    def quantized(self, recipe: Recipe, small: nn.Module) -> QuantModel:
        """A pruned model, quantized by a recipe."""
        return quantize_by(recipe, small, self.batches, self.example)

    def _train(self, model: nn.Module) -> None:
        assert self.finetune is not None
        self.in_finetune = True
        self.finetune(model)
        self.in_finetune = False

    def same_as_before(self, ratio: float) -> str:
        """Why a pruned model is not worth a trial: widths are rounded, so two ratios may give the same model."""
        shapes = [tuple(p.shape) for p in self.pruned(ratio).parameters()]
        for other in sorted({0.0, *self.ratios}):
            # If it cannot be pruned, a separate trial says so.
            with contextlib.suppress(*CANNOT):
                if other < ratio and [tuple(p.shape) for p in self.pruned(other).parameters()] == shapes:
                    return f"it prunes no more than {other:.0%} does"
        return ""

    def first_config(self, structure: Structure, bytes_allowed: float | None) -> QConfig:
        """The target's preset, on the model's device, with the bits of a structure."""
        where = f"DEVICE={device_of(self.model)}"
        config = load_qconfig(TARGETS[self.target].preset, [f"BACKEND={self.target}", where])
        if structure.weights == "8":
            return config
        config = load_qconfig(config, ["W.OBSERVER.TYPE=mse"])  # it is useful below 8 bits
        if structure.weights.isdigit():
            return load_qconfig(config, [f"W.QUANTIZER.BIT={structure.weights}"])
        found = self._sensitivities(structure.ratio, config)
        _, _, part = structure.weights.partition(" ")
        budget = float(part) * found.size(found.uniform(8)) if part else bytes_allowed
        return choose_bits(found, size=budget, points=2).config

    def _sensitivities(self, ratio: float, config: QConfig) -> Sensitivity:
        if ratio not in self._sensitivity:
            measure = partial(
                sensitivity,
                self.pruned(ratio),
                config,
                self.batches,
                example_inputs=self.example,
                bits=TARGETS[self.target].stored_bits,
                batches=4,
                progress=False,
            )
            try:
                self._sensitivity[ratio] = measure(metric=Curvature(seed=self.seed))
            except (SparsebitError, RuntimeError):  # no gradients here: by running it, which takes longer
                self._sensitivity[ratio] = measure(metric="output")
        return self._sensitivity[ratio]
