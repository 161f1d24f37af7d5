"""Packed models in folders of transformers: ``save_pretrained``, and ``from_pretrained`` once sparsebit is registered.

The folder is an ordinary one. Its config.json names the quantization method ``sparsebit`` and says what the buffers of
each packed layer mean; the weights are in safetensors. No code in the folder is run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.format import require_transformers
from sparsebit.llm.language_model import LanguageModel, install, require_no_adapters
from sparsebit.llm.packed.linear import PackedEmbedding, PackedLinear
from sparsebit.llm.packed.stored import describe_packed, packed_like
from sparsebit.storage import ArtifactError, Fields
from sparsebit.storage.drafts import new_place
from sparsebit.storage.place import writing

METHOD = "sparsebit"


def register_transformers() -> None:
    """Let transformers load folders that ``LanguageModel.save_pretrained`` wrote; calling it again does nothing."""
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    if METHOD not in AUTO_QUANTIZER_MAPPING:
        _define()


def save_pretrained(model: LanguageModel, folder: str | os.PathLike[str]) -> None:
    """Write the model, its config and its tokenizer as transformers does, to a new or an empty folder."""
    require_transformers(model, "save_pretrained")
    require_no_adapters(model, "save_pretrained")
    register_transformers()
    from transformers.quantizers.auto import AutoHfQuantizer

    if stacked := next((name for name in model.weights if "[" in name), None):
        raise SparsebitError(
            f"{stacked!r} belongs to stacked experts, for which transformers has no packed layer",
            hint="save it with model.save(folder)",
        )
    module: Any = model.model
    layers = {name.removesuffix(".weight"): describe_packed(held) for name, held in model.weights.items()}
    config = {"quant_method": METHOD, "layers": layers, "tied": _tied(module)}
    module.hf_quantizer = AutoHfQuantizer.from_config(config, pre_quantized=True)
    module.config.quantization_config = module.hf_quantizer.quantization_config
    try:
        with new_place(folder) as draft, writing(Path(folder), SafetensorError):
            module.save_pretrained(draft)
            model.save_tokenizer(draft)
    finally:
        del module.hf_quantizer, module.config.quantization_config


def _tied(model: nn.Module) -> dict[str, str]:
    """Packed layers that share the buffers of an earlier one, with the name of that one."""
    found: dict[int, str] = {}
    tied = {}
    for name, layer in model.named_modules():
        if isinstance(layer, (PackedLinear, PackedEmbedding)):
            first = found.setdefault(layer.packed.data_ptr(), name)
            if first != name:
                tied[name] = first
    return tied


def _define() -> None:
    """The classes that transformers asks for; they inherit from its own, so they are made when it is needed."""
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    @register_quantization_config(METHOD)
    class SparsebitConfig(QuantizationConfigMixin):
        """What is in config.json: the layers that are packed, and those that share their buffers."""

        def __init__(
            self, layers: dict[str, Any] | None = None, tied: dict[str, str] | None = None, **others: Any
        ) -> None:
            self.quant_method: Any = METHOD
            self.layers, self.tied = layers or {}, tied or {}

    @register_quantizer(METHOD)
    class SparsebitQuantizer(HfQuantizer):
        """Puts empty packed layers in place before transformers fills them."""

        requires_calibration = True
        quantization_config: Any

        def _process_model_before_weight_loading(self, model: Any, **others: Any) -> None:
            said = Fields(vars(self.quantization_config), "quantization_config")
            for name, _ in said.section("layers").items():
                held = packed_like(said.section("layers").section(name))
                try:
                    model.get_submodule(name)
                except AttributeError:
                    raise SparsebitError(
                        f"the model has no layer {name!r}, which config.json names"
                    ) from None
                with torch.device("meta"):
                    install(model, f"{name}.weight", held)
            keys = getattr(
                model, "all_tied_weights_keys", {}
            )  # packed layers are tied here, not by transformers
            packed = tuple(f"{name}." for name in self.quantization_config.layers)
            model.all_tied_weights_keys = {
                key: first for key, first in keys.items() if not key.startswith(packed)
            }
            for name in said.names("tied"):
                for key in ("packed", "scale", "zero_point"):  # the loader need not look for what is shared
                    model.get_submodule(name)._non_persistent_buffers_set.add(key)

        def _process_model_after_weight_loading(self, model: Any, **others: Any) -> Any:
            for name, first in self.quantization_config.tied.items():
                for key, buffer in model.get_submodule(first).named_buffers(recurse=False):
                    setattr(model.get_submodule(name), key, buffer)
            for name in self.quantization_config.layers:
                if problem := model.get_submodule(name).held.find_problem():
                    raise ArtifactError(f"the packed layer {name!r} is damaged: {problem} does not fit")
            return model

        def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
            tied = tuple(f"{name}." for name in self.quantization_config.tied)
            state = model.state_dict()
            return {key: value for key, value in state.items() if not key.startswith(tied or ("\0",))}, {}

        def is_serializable(self) -> bool:
            return True

        @property
        def is_trainable(self) -> bool:
            return True  # adapters over it
