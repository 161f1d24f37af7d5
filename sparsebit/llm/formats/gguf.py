"""GGUF: one file for llama.cpp and everything built on it, and for OpenVINO.

Quantized matrices become Q4_0, Q4_1 or Q8_0, everything else stays float32. A head that is tied to the embedding is
written once. Files of the Llama architecture hold the rows of query and key in another order, because llama.cpp rotates
neighbouring channels where transformers rotates halves; rows move as a whole, so no number changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError, missing_package
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.llama_cpp import LLAMA_CPP
from sparsebit.llm.formats.format import (
    FORMATS,
    FormatRefusal,
    WeightKind,
    float_state,
    layers_of,
    require_transformers,
)
from sparsebit.llm.formats.gguf_blocks import block_type, block_type_of, blocks
from sparsebit.llm.formats.gguf_tokenizer import add_tokenizer
from sparsebit.llm.language_model import LanguageModel

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
_SETTING = "BIT: 4 or 8, SCHEME: full-range, GROUP_SIZE: 32, SCALE_DTYPE: float16"


@FORMATS.register("gguf")
class Gguf:
    """A file for llama.cpp."""

    extension: ClassVar[str] = ".gguf"
    engine: ClassVar[Engine | None] = LLAMA_CPP

    mixes_widths: ClassVar[bool] = True

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Weights that no type of block holds whatever their values are."""
        found = block_type_of(kind.code, kind.group_size, kind.shape[1])
        if kind.scale_dtype != torch.float16:
            found = "its scales are fp16"
        if found == "Q4_1":
            found = "with zero points it holds some scales only"
        return None if found in _FILE_TYPES else FormatRefusal(layer, found, _SETTING)

    def file_bits(self, bits: int) -> int:
        """Fewer bits than four are stored as four."""
        return max(bits, 4)

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers whose numbers no type of block holds exactly."""
        require_architecture(model)
        for name, held in layers_of(model):
            kind = block_type(held)
            if kind not in _FILE_TYPES:
                yield FormatRefusal(name, kind, _SETTING)

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Settings, tokenizer and tensors, through the package ``gguf``."""
        gguf = import_gguf()
        module: Any = model.model
        config = module.config
        architecture = ARCHITECTURES[config.model_type]
        writer = gguf.GGUFWriter(path, architecture)
        kinds = {name: block_type(held) for name, held in model.weights.items()}
        ((most, _),) = Counter(kinds.values()).most_common(1) or [("F32", 0)]
        writer.add_file_type(_FILE_TYPES.get(most, 0))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_settings(writer, config)
        add_tokenizer(writer, model.tokenizer, config.vocab_size)
        names = gguf.get_tensor_name_map(_of_architecture(gguf, architecture), config.num_hidden_layers)
        for name, tensor in float_state(module).items():
            rows = row_order(name, config)
            values = tensor.float() if rows is None else tensor.float()[rows]
            writer.add_tensor(_name(names, name), values.contiguous().numpy())
        written: set[int] = set()
        for name, held in model.weights.items():
            if held.bits.data_ptr() in written:
                continue  # the head, tied to the embedding
            written.add(held.bits.data_ptr())
            rows = row_order(name, config)
            data = blocks(held, kinds[name]) if rows is None else blocks(held, kinds[name])[rows]
            kind = gguf.GGMLQuantizationType[kinds[name]]
            writer.add_tensor(_name(names, name), data.contiguous().numpy(), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def require_architecture(model: LanguageModel) -> None:
    """Refuse models that llama.cpp has no architecture for that is written here."""
    require_transformers(model, "gguf")
    module: Any = model.model
    config = module.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in ARCHITECTURES or rope != "default" or config.hidden_act != "silu":
        raise SparsebitError(
            "gguf files are written for some architectures only",
            expected=f"{', '.join(ARCHITECTURES)}, with plain rotary embeddings and SiLU",
            got=f"{config.model_type}, {rope} rotary embeddings, {getattr(config, 'hidden_act', '')}",
            hint="choose another format",
        )


def add_settings(writer: Any, config: Any) -> None:
    """The sizes and constants of the model."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    window = getattr(config, "sliding_window", None) or config.max_position_embeddings
    writer.add_context_length(min(window, config.max_position_embeddings))  # a window is not written
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def row_order(name: str, config: Any) -> Tensor | None:
    """Which row of the original stands at each place of the file; None where the order is the same.

    Example:
        >>> from types import SimpleNamespace
        >>> config = SimpleNamespace(
        ...     model_type="llama", num_attention_heads=2, hidden_size=8, num_key_value_heads=2, head_dim=4
        ... )
        >>> row_order("model.layers.0.self_attn.q_proj.weight", config)
        tensor([0, 2, 1, 3, 4, 6, 5, 7])
    """
    layer = name.rpartition(".")[0]
    if ARCHITECTURES[config.model_type] != "llama" or not layer.endswith((".q_proj", ".k_proj")):
        return None
    query = layer.endswith(".q_proj")
    heads = config.num_attention_heads if query else config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return torch.arange(heads * width).view(heads, 2, width // 2).transpose(1, 2).flatten()


def import_gguf() -> Any:
    """The package that writes the files."""
    try:
        import gguf
    except ImportError as error:
        raise missing_package("gguf", "a gguf file", extra="llm-engines", error=error) from None
    return gguf


def _of_architecture(gguf: Any, name: str) -> Any:
    return next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)


def _name(names: Any, name: str) -> str:
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise SparsebitError(f"gguf has no name for the tensor {name!r}", hint="choose another format")
    return str(found)
