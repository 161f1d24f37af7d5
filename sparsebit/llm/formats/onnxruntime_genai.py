"""A folder for ONNX Runtime GenAI: model.onnx with packed weights, genai_config.json, and the tokenizer.

Products with quantized weights are ``MatMulNBits``, whose ``accuracy_level`` is chosen by measurement: level 4 rounds
activations to 8 bits, which makes a product several times faster, if that costs little accuracy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.decoder.parts import Decoder
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.onnxruntime_genai import ONNXRUNTIME_GENAI
from sparsebit.llm.formats.accuracy_level import choose_levels
from sparsebit.llm.formats.decoder_folder import DecoderFolder
from sparsebit.llm.formats.format import FORMATS
from sparsebit.llm.language_model import LanguageModel

# Model types that the engine knows by name; other graphs run under one of these names.
TYPES = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text"),
    *("phi", "olmo", "granite", "smollm3"),
)
GRAPH = "model.onnx"


@FORMATS.register("onnxruntime-genai")
@dataclass(frozen=True, kw_only=True)
class GenAIFolder(DecoderFolder):
    """A folder that ``onnxruntime_genai.Model`` loads.

    Attributes:
        rounding_budget: what 8-bit activations may cost, in nats; layers beyond it are computed in float.
    """

    rounding_budget: float = 0.02
    name: ClassVar[str] = "onnxruntime-genai"
    head_step: ClassVar[int] = 8
    half_scales: ClassVar[bool] = False
    byte_points: ClassVar[bool] = False
    engine: ClassVar[Engine] = ONNXRUNTIME_GENAI

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Write the graph with its weights in a separate file, the settings and the tokenizer."""
        import onnx_ir as ir

        from sparsebit.llm.formats.onnx_graph import OnnxGraph

        module: Any = model.model
        levels = choose_levels(module, model.weights, ids, self.rounding_budget).by_layer
        decoder = describe_decoder(module, self.name)
        made = OnnxGraph(decoder, model.weights, levels).model()
        ir.save(made, path / GRAPH, external_data=f"{GRAPH}.data")
        settings = json.dumps(genai_config(module.config, decoder, made.graph.inputs), indent=1)
        (path / "genai_config.json").write_text(settings + "\n", encoding="utf-8")
        model.save_tokenizer(path)


def genai_config(config: Any, decoder: Decoder, inputs: Iterable[Any]) -> dict[str, Any]:
    """The engine's settings for a graph with these inputs."""
    attention = decoder.layers[0].attention
    names = [one.name for one in inputs if not one.name.startswith("past_key_values.")]
    end = config.eos_token_id
    first_end = end[0] if isinstance(end, list) else end
    tokens = {
        "bos_token_id": first_end if config.bos_token_id is None else config.bos_token_id,
        "eos_token_id": end,
        "pad_token_id": first_end if config.pad_token_id is None else config.pad_token_id,
    }
    return {
        "model": {
            "type": config.model_type if config.model_type in TYPES else "llama",
            **{key: value for key, value in tokens.items() if value is not None},
            "vocab_size": decoder.head.shape[0],
            "context_length": decoder.context,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": "model.onnx",
                "head_size": attention.width,
                "hidden_size": config.hidden_size,
                "num_attention_heads": attention.heads,
                "num_key_value_heads": attention.kv_heads,
                "num_hidden_layers": len(decoder.layers),
                "inputs": {
                    **dict(zip(names, names, strict=True)),
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
            "max_length": decoder.context,
            "do_sample": False,
            "past_present_share_buffer": True,
        },
    }
