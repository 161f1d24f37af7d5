"""A recipe: everything that was done to a model, as one YAML file that reproduces it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparsebit.batches import Call, example_call
from sparsebit.config import QConfig, SConfig, load_qconfig, load_sconfig
from sparsebit.config.engine.yaml_file import read_yaml, write_yaml
from sparsebit.errors import ConfigError
from sparsebit.graph.seeded import seeded
from sparsebit.quantization import QuantModel
from sparsebit.recipes.reestimate import reestimate_norms
from sparsebit.sparse import SparseModel
from sparsebit.storage.text_file import read_text

Finetune = Callable[[nn.Module], object]
MOST_BYTES = 2**21
_KEYS = ("SEED", "PRUNE", "REESTIMATE_NORMS", "FINETUNE", "QUANTIZE")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Prune, re-estimate batch norm, train, quantize: each is optional, in this order.

    Example:
        >>> recipe = Recipe(quantize=load_qconfig("int8_onnxruntime"))
        >>> Recipe.from_yaml(recipe.to_yaml()) == recipe
        True
    """

    quantize: QConfig
    prune: SConfig | None = None
    reestimate: bool = False
    """Whether batch norm is measured again on the calibration data after pruning; needs no labels."""
    finetune: bool = False
    """Whether the pruned model was trained by a function of the user's, which a file cannot hold."""
    seed: int = 0
    name: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON and YAML."""
        return {
            "SEED": self.seed,
            "PRUNE": self.prune.to_dict() if self.prune else None,
            "REESTIMATE_NORMS": self.reestimate,
            "FINETUNE": self.finetune,
            "QUANTIZE": self.quantize.to_dict(),
        }

    def to_yaml(self) -> str:
        """The text of the file."""
        note = f"# {self.name}\n" if self.name else ""
        return note + write_yaml(self.to_dict())

    @classmethod
    def from_dict(cls, data: object, name: str = "") -> Recipe:
        """The recipe from the data of ``to_dict``."""
        if not isinstance(data, Mapping) or not isinstance(data.get("QUANTIZE"), Mapping | str):
            raise ConfigError("this is not a recipe", expected=f"the keys {', '.join(_KEYS)}")
        if unknown := [str(key) for key in data if key not in _KEYS]:
            raise ConfigError(f"recipe: unknown key {unknown[0]!r}", expected=f"the keys {', '.join(_KEYS)}")
        prune, seed = data.get("PRUNE"), data.get("SEED", 0)
        if prune is not None and not isinstance(prune, Mapping | str):
            raise ConfigError("recipe: PRUNE: expected a pruning config or null", got=repr(prune)[:80])
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ConfigError("recipe: SEED: expected an integer from 0 to 2**63 - 1", got=repr(seed)[:80])
        flags = {key: data.get(key, False) for key in ("REESTIMATE_NORMS", "FINETUNE")}
        for key, flag in flags.items():
            if not isinstance(flag, bool):
                raise ConfigError(f"recipe: {key}: expected true or false", got=repr(flag)[:80])
        return cls(
            quantize=load_qconfig(data["QUANTIZE"]),
            prune=load_sconfig(prune) if prune else None,
            reestimate=flags["REESTIMATE_NORMS"],
            finetune=flags["FINETUNE"],
            seed=seed,
            name=name,
        )

    @classmethod
    def from_yaml(cls, text: str, source: str = "recipe") -> Recipe:
        """The recipe in the text of a file."""
        return cls.from_dict(read_yaml(text, source))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recipe:
        """The recipe in a file."""
        try:
            text = read_text(path, MOST_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(f"the recipe {os.fspath(path)!r} cannot be read: {reason}") from None
        return cls.from_yaml(text, os.fspath(path))


def prune_by(
    recipe: Recipe,
    model: nn.Module,
    data: Iterable[Any],
    example: Call,
    *,
    finetune: Finetune | None = None,
) -> nn.Module:
    """Apply the pruning of a recipe; returns the model itself if it does not prune."""
    if recipe.prune is None:
        return model
    if recipe.finetune and finetune is None:
        raise ConfigError(
            "this recipe trains the pruned model", hint="pass finetune=, the function that does it"
        )
    with seeded(recipe.seed, model):
        smodel = SparseModel(model, recipe.prune, example)
        smodel.calc_params(data)
        small = smodel.shrink()
        if recipe.reestimate:
            reestimate_norms(small, data, example)
        if recipe.finetune and finetune is not None:
            small.train()
            finetune(small)
    return small.eval()


def quantize_by(recipe: Recipe, model: nn.Module, data: Iterable[Any], example: Call) -> QuantModel:
    """Apply the quantization of a recipe; returns the calibrated model."""
    with seeded(recipe.seed, model):
        qmodel = QuantModel(model, recipe.quantize, example)
        qmodel.calibrate(data, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel.eval()


def apply_recipe(
    recipe: Recipe | str | os.PathLike[str] | Mapping[str, Any],
    model: nn.Module,
    data: Iterable[Any],
    example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    finetune: Finetune | None = None,
) -> QuantModel:
    """Apply a recipe: a ``Recipe``, a file of one, or plain data.

    Args:
        recipe: the recipe.
        model: in the state in which the recipe was found; not changed.
        data: the same calibration batches; the result is then bit-identical.
        example_inputs, example_kwargs: as for ``QuantModel``.
        finetune: trains the pruned model in place, for recipes that include training.
    """
    if isinstance(recipe, Mapping):
        recipe = Recipe.from_dict(recipe)
    elif not isinstance(recipe, Recipe):
        recipe = Recipe.read(recipe)
    batches, example = list(data), example_call(example_inputs, example_kwargs)
    small = prune_by(recipe, model, batches, example, finetune=finetune)
    return quantize_by(recipe, small, batches, example)
