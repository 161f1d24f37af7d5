"""One small decoder of each family and variant that files for engines are written for, any mistake in which shows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

_SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_WIDE = {**_SIZES, "intermediate_size": 128, "max_position_embeddings": 64}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_GROUPED = {**_WIDE, "num_key_value_heads": 2}
_GEMMA = {**_GROUPED, "head_dim": 32, "query_pre_attn_scalar": 20, "sliding_window": 4}
_GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
_OPT = {**_SIZES, "ffn_dim": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 64}
_PARTIAL = {**_WIDE, "hidden_size": 128}
_FALCON = {**_SIZES, "alibi": False, "bias": True, "max_position_embeddings": 64}
_TYPES = ["sliding_attention", "full_attention"]
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROPE = {"rope_theta": 100.0, "original_max_position_embeddings": 16}

# By name: the model type of transformers, and its settings. Windows are shorter than the texts that are compared.
VARIANTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("llama", {**_GROUPED, "attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {**_GROUPED, "tie_word_embeddings": True}),
    "llama, rope of llama3": (
        "llama",
        {
            **_GROUPED,
            "rope_parameters": {
                **_ROPE,
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        },
    ),
    "llama, linear rope": (
        "llama",
        {**_GROUPED, "rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 3.0}},
    ),
    "mistral, window": ("mistral", {**_GROUPED, "sliding_window": 4}),
    "qwen2, some windows": (
        "qwen2",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 4, "layer_types": _TYPES},
    ),
    "qwen2, yarn": ("qwen2", {**_GROUPED, "rope_parameters": {**_ROPE, "rope_type": "yarn", "factor": 4.0}}),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 32}),
    "phi3, window": ("phi3", {**_GROUPED, "sliding_window": 4}),
    "phi3, longrope": (
        "phi3",
        {
            **_GROUPED,
            "original_max_position_embeddings": 16,
            "rope_parameters": {
                "rope_theta": 100.0,
                "rope_type": "longrope",
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5],
            },
        },
    ),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 32}),
    "gemma2": (
        "gemma2",
        {**_GEMMA, "layer_types": _TYPES, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
    ),
    "gemma3_text": ("gemma3_text", {**_GEMMA, "layer_types": _TYPES}),
    "phi": ("phi", {**_PARTIAL, "num_key_value_heads": 2}),
    "phi, norms of heads": ("phi", {**_PARTIAL, "qk_layernorm": True}),
    "gpt_neox": (
        "gpt_neox",
        {**_PARTIAL, "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5}},
    ),
    "gpt_neox, not parallel": ("gpt_neox", {**_WIDE, "use_parallel_residual": False}),
    "gpt2": ("gpt2", _GPT2),
    "opt": ("opt", _OPT),
    "falcon, one head of keys": ("falcon", {**_FALCON, "multi_query": True}),
    "falcon, new": ("falcon", {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon, not parallel": ("falcon", {**_FALCON, "multi_query": False, "parallel_attn": False}),
    "qwen2_moe": (
        "qwen2_moe",
        {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 96, "norm_topk_prob": False},
    ),
    "qwen3_moe, a layer without experts": (
        "qwen3_moe",
        {**_GROUPED, **_EXPERTS, "head_dim": 32, "mlp_only_layers": [0], "norm_topk_prob": True},
    ),
    "smollm3, a layer without rotations": ("smollm3", {**_GROUPED, "no_rope_layers": [1, 0]}),
    "granite": (
        "granite",
        {
            **_GROUPED,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.5,
            "residual_multiplier": 0.7,
            "logits_scaling": 0.5,
        },
    ),
    "starcoder2, window": ("starcoder2", {**_GROUPED, "sliding_window": 4}),
    "stablelm": ("stablelm", {**_GROUPED, "use_qkv_bias": True}),
    "stablelm, parallel": ("stablelm", {**_GROUPED, "use_parallel_residual": True}),
    "seed_oss": ("seed_oss", {**_GROUPED, "head_dim": 32, "attention_bias": True}),
    "glm4": ("glm4", {**_GROUPED, "head_dim": 32, "attention_bias": True}),
    "cohere": ("cohere", {**_GROUPED, "logit_scale": 0.5}),
    "cohere2": ("cohere2", {**_GROUPED, "sliding_window": 4, "layer_types": _TYPES, "logit_scale": 0.5}),
    "olmo3": ("olmo3", {**_GROUPED, "sliding_window": 4, "layer_types": _TYPES}),
    "olmoe": ("olmoe", {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False}),
    "olmo": ("olmo", {**_GROUPED, "clip_qkv": 1.0}),
    "olmo2": ("olmo2", _GROUPED),
    "mixtral": (
        "mixtral",
        {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
}


def family_model(name: str, **settings: object) -> nn.Module:
    """Random weights; norms and biases matter, attention is to few positions, and predictions are sharp."""
    transformers = pytest.importorskip("transformers")
    kind, known = VARIANTS[name]
    config = transformers.AutoConfig.for_model(kind, **{**_TOKENS, **known, **settings})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                parameter *= 6
    return model  # type: ignore[no-any-return]
