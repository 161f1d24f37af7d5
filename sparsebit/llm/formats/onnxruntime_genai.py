"""A folder for ONNX Runtime GenAI: model.onnx with packed weights, genai_config.json, and the tokenizer.

Products with quantized weights are ``MatMulNBits``, whose ``accuracy_level`` is chosen by measurement: level 4 rounds
activations to 8 bits, which makes a product several times faster, where that costs little.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.onnxruntime_genai import ONNXRUNTIME_GENAI
from sparsebit.llm.formats.accuracy_level import choose_levels
from sparsebit.llm.formats.format import (
    FORMATS,
    FormatRefusal,
    WeightKind,
    refuse_by_kind,
    require_transformers,
)
from sparsebit.llm.formats.matmul_nbits import block_of, stored_bits
from sparsebit.llm.language_model import LanguageModel

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
GRAPH = "model.onnx"


@FORMATS.register("onnxruntime-genai")
@dataclass(frozen=True, kw_only=True)
class GenAIFolder:
    """A folder that ``onnxruntime_genai.Model`` opens.

    Attributes:
        rounding_budget: what 8-bit activations may cost, in nats; layers beyond it are computed in float.
    """

    rounding_budget: float = 0.02
    extension: ClassVar[str] = ""
    engine: ClassVar[Engine | None] = ONNXRUNTIME_GENAI

    mixes_widths: ClassVar[bool] = True

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Blocks and types that ``MatMulNBits`` does not have."""
        return refuse_blocks(layer, kind)

    def file_bits(self, bits: int) -> int:
        """Three bits are stored as four."""
        return stored_bits(bits)

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers whose blocks or types ``MatMulNBits`` does not have."""
        require_decoder(model, "onnxruntime-genai")
        return refuse_by_kind(self, model)

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """The graph with its weights beside it, the settings and the tokenizer."""
        import onnx_ir as ir

        from sparsebit.llm.formats.decoder_graph import DecoderGraph

        levels = choose_levels(model.model, model.weights, ids, self.rounding_budget).by_layer
        made = DecoderGraph(model.model, model.weights, levels).model()
        ir.save(made, path / GRAPH, external_data=f"{GRAPH}.data")
        module: Any = model.model
        settings = json.dumps(genai_config(module.config), indent=1)
        (path / "genai_config.json").write_text(settings + "\n", encoding="utf-8")
        model.save_tokenizer(path)


def refuse_blocks(layer: str, kind: WeightKind) -> FormatRefusal | None:
    """Weights that are not 2, 3, 4 or 8 bits in blocks of 16 to 256."""
    if kind.code.kind not in ("int", "full", "uint") or kind.code.bits not in (2, 3, 4, 8):
        return FormatRefusal(layer, f"it has no type for {kind.code}", "BIT: 2, 3, 4 or 8")
    if block_of(kind.group_size or kind.shape[1]) < 16:
        return FormatRefusal(layer, "its blocks are 16 to 256 input channels", "GROUP_SIZE: 32")
    return None


def require_decoder(model: LanguageModel, format_name: str) -> None:
    """Refuse models that have no decoder graph."""
    require_transformers(model, format_name)
    module: Any = model.model
    config = module.config
    if config.model_type not in ARCHITECTURES or config.hidden_act != "silu":
        raise SparsebitError(
            f"{format_name} folders are written for some architectures only",
            expected=f"{', '.join(ARCHITECTURES)}, with SiLU",
            got=f"{config.model_type}, {getattr(config, 'hidden_act', 'other')}",
            hint="choose another format",
        )


def genai_config(config: Any) -> dict[str, Any]:
    """What the engine must know beside the graph."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    end = config.eos_token_id
    first_end = end[0] if isinstance(end, list) else end
    return {
        "model": {
            "type": config.model_type,
            "bos_token_id": first_end if config.bos_token_id is None else config.bos_token_id,
            "eos_token_id": end,
            "pad_token_id": first_end if config.pad_token_id is None else config.pad_token_id,
            "vocab_size": config.vocab_size,
            "context_length": config.max_position_embeddings,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": "model.onnx",
                "head_size": width,
                "hidden_size": config.hidden_size,
                "num_attention_heads": config.num_attention_heads,
                "num_key_value_heads": config.num_key_value_heads,
                "num_hidden_layers": config.num_hidden_layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "max_length": config.max_position_embeddings,
            "do_sample": False,
            "past_present_share_buffer": True,
        },
    }
