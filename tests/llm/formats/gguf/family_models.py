"""Small models of every family that a GGUF file can hold, with weights that show a mistake in any of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.llama_cpp import LLAMA_CPP
from tests.llm.models import VOCABULARY, tokenizer

needs_llama_cpp = pytest.mark.skipif(
    bool(missing_modules(LLAMA_CPP)), reason="gguf and xllamacpp are not installed"
)

ABSENT = object()  # a setting that a family does not have

_SIZES: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

MODELS: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": {"sliding_window": 16},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "phi3": {},
    "gemma": {"head_dim": 32},
    "gemma2": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 1.0,
    },
    "gemma3_text": {
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "phi": {},
    "gpt2": {"num_key_value_heads": ABSENT, "intermediate_size": ABSENT},
    "gpt_neox": {"num_key_value_heads": ABSENT, "rotary_pct": 0.5},
    "falcon": {"num_key_value_heads": ABSENT, "num_kv_heads": 2, "ffn_hidden_size": 96},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 32,
        "norm_topk_prob": True,
    },
    "stablelm": {"use_qkv_bias": True},
    "olmo": {"clip_qkv": 1.0},
    "olmo2": {},
    "olmo3": {"sliding_window": 8, "num_hidden_layers": 5},
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.5,
        "residual_multiplier": 0.7,
        "logits_scaling": 0.5,
    },
    "starcoder2": {},
    "smollm3": {"num_hidden_layers": 5},
    "olmoe": {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2},
    "cohere": {"logit_scale": 2.0},
    "cohere2": {"logit_scale": 2.0, "sliding_window": 8, "head_dim": 16, "num_hidden_layers": 4},
    "gpt_bigcode": {"num_key_value_heads": ABSENT, "intermediate_size": ABSENT},
    "nemotron": {"head_dim": 16, "norm_eps": 1e-3, "mlp_bias": True},
    "arcee": {"head_dim": 32},
    "glm4": {"head_dim": 32},
    "seed_oss": {"head_dim": 32, "attention_out_bias": False},
}


def make_model(name: str, **settings: object) -> nn.Module:
    """A model that attends to few positions, is sure of its tokens, and has no weight of one and no bias of zero."""
    transformers = pytest.importorskip("transformers")
    given = _SIZES | MODELS.get(name, {}) | settings
    config = transformers.AutoConfig.for_model(
        name, **{key: value for key, value in given.items() if value is not ABSENT}
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                queries = ("q_proj", "k_proj", "qkv", "c_attn", "query_key_value")
                parameter *= 10 if any(part in key for part in queries) else 5
    return model


def quantized_model(name: str, *, head: int = 0, tokens: Any = None, **settings: object) -> llm.LanguageModel:
    """The model in 4 bits, with a tokenizer; ``head``: bits of the head and the embedding, 0 for float."""
    if tokens is not None:
        settings["vocab_size"] = len(tokens)
    config = {"W": {"BIT": 4, "GROUP_SIZE": 32}, "HEAD": {"BIT": head}, "METHOD": "rtn"}
    made = llm.quantize(
        make_model(name, **settings), None, config, tokenizer=tokens or tokenizer(), progress=False
    )
    return made
