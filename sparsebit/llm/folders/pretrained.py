"""Packed models in transformers folders: ``save_pretrained``, and ``from_pretrained`` once sparsebit is registered.

It is an ordinary folder. Its config.json names the quantization method ``sparsebit`` and describes the buffers of each
packed layer; the weights are in safetensors. No code in the folder is run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.folders.source import run_experts_in_turn
from sparsebit.llm.formats.format import require_transformers
from sparsebit.llm.language_model import LanguageModel, install
from sparsebit.llm.lora.attach import require_no_adapters
from sparsebit.llm.packed.linear import PackedLayer
from sparsebit.llm.packed.stack import module_name
from sparsebit.llm.packed.stored import describe_packed, packed_like
from sparsebit.storage import ArtifactError, Fields
from sparsebit.storage.drafts import new_place
from sparsebit.storage.place import writing

METHOD = "sparsebit"
SHARED = ("packed", "scale", "zero_point")  # buffers of packed layers; each layer has a bias of its own


def register_transformers() -> None:
    """Let transformers load folders that ``LanguageModel.save_pretrained`` wrote; calling it again does nothing."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    if METHOD not in AUTO_QUANTIZER_MAPPING:
        _define()


def save_pretrained(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write the model, its config and its tokenizer as transformers does, to a new or an empty folder."""
    require_transformers(model.model, "save_pretrained")
    require_no_adapters(model)
    register_transformers()
    from transformers.quantizers.auto import AutoHfQuantizer

    module: Any = model.model
    packed, transposed = dict(_packed_layers(module)), model.transposed
    layers = {
        layer: describe_packed(held) | {"transposed": name in transposed}
        for name, held in model.weights.items()
        if module_name(layer := name.removesuffix(".weight")) in packed
    }
    config = {"quant_method": METHOD, "layers": layers, "tied": _tied(module)}
    module.hf_quantizer = AutoHfQuantizer.from_config(config, pre_quantized=True)
    module.config.quantization_config = module.hf_quantizer.quantization_config
    try:
        with new_place(folder) as draft, writing(Path(folder), SafetensorError):
            # With the names of the module: transformers would split packed stacks into the tensors of the original.
            module.save_pretrained(draft, save_original_format=False)
            model.save_tokenizer(draft)
    finally:
        del module.hf_quantizer, module.config.quantization_config


def _tied(model: nn.Module) -> dict[str, str]:
    """Packed layers that share the buffers of an earlier layer, with its name."""
    found: dict[int, str] = {}
    tied = {}
    for name, layer in _packed_layers(model):
        first = found.setdefault(layer.packed.data_ptr(), name)
        if first != name:
            tied[name] = first
    return tied


def _packed_layers(model: nn.Module) -> Iterator[tuple[str, PackedLayer]]:
    for name, layer in model.named_modules():
        if isinstance(layer, PackedLayer):
            yield name, layer


def _define() -> None:
    """The classes that transformers needs; they derive from its classes, so they are defined on first use."""
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(METHOD)
    class SparsebitConfig(QuantizationConfigMixin):
        """The entry in config.json: the packed layers, and those that share buffers."""

        def __init__(
            self, layers: dict[str, Any] | None = None, tied: dict[str, str] | None = None, **others: Any
        ) -> None:
            self.quant_method: Any = METHOD
            self.layers, self.tied = layers or {}, tied or {}

    @register_quantizer(METHOD)
    class SparsebitQuantizer(HfQuantizer):
        """Inserts empty packed layers, which transformers then fills."""

        requires_calibration = True
        quantization_config: Any

        def _process_model_before_weight_loading(self, model: Any, **others: Any) -> None:
            said = Fields(vars(self.quantization_config), "quantization_config")
            weights, transposed = {}, set()
            for name, _ in said.section("layers").items():
                parameter = name.partition("[")[0] if "[" in name else f"{name}.weight"
                try:
                    model.get_parameter(parameter)
                except AttributeError:
                    raise SparsebitError(
                        f"the model has no layer {name!r}, which config.json names"
                    ) from None
                described, matrix = said.section("layers").section(name), name if "[" in name else parameter
                weights[matrix] = packed_like(described)
                if described.flag("transposed"):
                    transposed.add(matrix)
            run_experts_in_turn(model)
            with torch.device("meta"):
                install(model, weights, transposed)
            # Packed layers are tied here, not by transformers.
            keys = getattr(model, "all_tied_weights_keys", {})
            packed = tuple(f"{module_name(name)}." for name in self.quantization_config.layers)
            model.all_tied_weights_keys = {
                key: first
                for key, first in keys.items()
                if not key.startswith(packed) or key.endswith(".bias")
            }
            for name in said.names("tied"):
                for key in SHARED:  # the loader must not expect the shared buffers
                    model.get_submodule(name)._non_persistent_buffers_set.add(key)

        def _process_model_after_weight_loading(self, model: Any, **others: Any) -> Any:
            for name, first in self.quantization_config.tied.items():
                for key, buffer in model.get_submodule(first).named_buffers(recurse=False):
                    setattr(model.get_submodule(name), key, buffer)
            for _, layer in _packed_layers(model):
                layer.dtype = model.dtype  # that the model is loaded in: rows of an embedding have it
            for name in self.quantization_config.layers:
                if problem := model.get_submodule(module_name(name)).held.find_problem():
                    raise ArtifactError(f"the packed layer {name!r} is damaged: {problem} does not fit")
            return model

        def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
            tied = {f"{name}.{key}" for name in self.quantization_config.tied for key in SHARED}
            return {key: value for key, value in model.state_dict().items() if key not in tied}, {}

        def is_serializable(self) -> bool:
            return True

        @property
        def is_trainable(self) -> bool:
            return True  # adapters over it
