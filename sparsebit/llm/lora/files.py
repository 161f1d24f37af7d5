"""Adapter files as peft writes them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.llm.folders.folder_config import require_plain_files
from sparsebit.llm.language_model import LanguageModel, require_language_model
from sparsebit.llm.lora.attach import add_lora, lora_layers, packed_layers
from sparsebit.llm.lora.layer import LoraLinear
from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.storage import ArtifactError, Fields
from sparsebit.storage.json_text import read_json
from sparsebit.storage.text_file import read_bytes, write_bytes, write_text

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
MOST_BYTES = 2**20
# peft options that change what an adapter computes, or add weights besides A and B.
CHANGES_WHAT_IS_COMPUTED = (
    "use_rslora", "use_dora", "use_qalora", "lora_bias", "bias", "rank_pattern", "alpha_pattern",
    "modules_to_save", "layer_replication", "trainable_token_indices", "target_parameters",
    "alora_invocation_tokens", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config",
)  # fmt: skip
# Starts of an adapter that leave the weights of the base model as they are; all others change them.
KEEPS_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")


def save_lora(model: LanguageModel, folder: str | os.PathLike[str], *, base: str = "") -> None:
    """Write the adapters of a model; ``base`` is the name of the float model in peft's config."""
    require_language_model(model)
    layers = dict(lora_layers(model.model))
    if not layers:
        raise SparsebitError("the model has no adapters", hint="add_lora(model) first")
    first = next(iter(layers.values()))
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "lora_dropout": first.dropout,
        "target_modules": sorted(layers),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    tensors = {}
    for name, layer in layers.items():
        tensors[f"{PREFIX}{name}.lora_A.weight"] = layer.lora_A.detach().cpu().contiguous()
        tensors[f"{PREFIX}{name}.lora_B.weight"] = layer.lora_B.detach().cpu().contiguous()
    place = Path(folder)
    write_bytes(place / WEIGHTS, save(tensors, metadata={"format": "pt"}))
    # Written last: without it the folder has no adapters.
    write_text(place / CONFIG, json.dumps(config, indent=1) + "\n")


def load_lora(model: LanguageModel, folder: str | os.PathLike[str]) -> list[str]:
    """Add the adapters of a folder, written by ``save_lora`` or peft, to a packed model; returns the layers.

    If they do not fit, the model is unchanged.
    """
    require_language_model(model)
    place = Path(folder)
    try:
        data = read_bytes(place / CONFIG, MOST_BYTES)
    except OSError as error:
        raise ArtifactError("the folder contains no adapters", where=str(place), got=str(error)) from None
    said = Fields(read_json(data, place / CONFIG), str(place / CONFIG))
    if said.text("peft_type") != "LORA":
        raise said.wrong("peft_type", "LORA")
    for key in ("init_lora_weights", *CHANGES_WHAT_IS_COMPUTED):
        allowed: tuple[object, ...] = (
            KEEPS_THE_BASE if key == "init_lora_weights" else (None, False, "none", {}, [])
        )
        if key in said and said.value(key) not in allowed:
            raise ArtifactError(
                f"adapters with the peft option {key!r} are not supported",
                where=str(place / CONFIG),
                got=repr(said.value(key))[:80],
                hint="train the adapters without it",
            )
    require_plain_files(place)
    try:
        tensors = load_file(place / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            "the weights of the adapters cannot be read", where=str(place), got=str(error)
        ) from None
    names = sorted({key.removeprefix(PREFIX).partition(".lora_")[0] for key in tensors})
    rank = said.integer("r")
    layers = packed_layers(model.model)
    for name in names:
        _require_fit(layers.get(name), name, rank, tensors, place)
    dropout = said.number("lora_dropout") if "lora_dropout" in said else 0.0
    added = add_lora(model, rank=rank, alpha=said.number("lora_alpha"), dropout=dropout, layers=names)
    adapters = dict(lora_layers(model.model))
    for name in names:
        for part, parameter in (("A", adapters[name].lora_A), ("B", adapters[name].lora_B)):
            parameter.data.copy_(tensors[f"{PREFIX}{name}.lora_{part}.weight"])
    return added


def _require_fit(
    layer: PackedLinear | LoraLinear | None, name: str, rank: int, tensors: Mapping[str, Tensor], place: Path
) -> None:
    """Raise unless the model has a packed layer of this name and size."""
    if layer is None:
        raise ArtifactError(
            f"the adapters are for a packed layer {name!r}, which the model does not have",
            where=str(place),
            expected="the model that the adapters were trained on, quantized",
        )
    for part, shape in (("A", (rank, layer.in_features)), ("B", (layer.out_features, rank))):
        tensor = tensors.get(f"{PREFIX}{name}.lora_{part}.weight")
        if tensor is None or tuple(tensor.shape) != shape or not bool(torch.isfinite(tensor).all()):
            raise ArtifactError(
                f"lora_{part} of {name!r} is missing or does not fit",
                where=str(place),
                expected=f"finite values of shape {shape}",
                got="nothing" if tensor is None else str(tuple(tensor.shape)),
                hint="load the adapters over the model that they were trained on",
            )
