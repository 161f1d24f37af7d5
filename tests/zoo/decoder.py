"""Causal language models of ``transformers``, from small configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .entry import Call, ZooEntry, floats, integers, padding_mask, zoo_entry
from .huggingface import SPREAD, TRANSFORMER, hf

VOCABULARY = 100
_LLAMA = {**TRANSFORMER, "vocab_size": VOCABULARY, "num_key_value_heads": 2, "max_position_embeddings": 64}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    **SPREAD,
}
_GEMMA = {**_LLAMA, "head_dim": 8, "pad_token_id": 0}
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **SPREAD}


def _tokens(batch: int, length: int = 10) -> Call:
    return (), {"input_ids": integers(VOCABULARY, batch, length, low=3), "use_cache": False}


def _masked(batch: int, length: int = 10) -> Call:
    """Padding on the left, as for generation."""
    args, kwargs = _tokens(batch, length)
    return args, {**kwargs, "attention_mask": padding_mask(batch, length).flip(1)}


def _cached(batch: int, length: int = 10) -> Call:
    args, kwargs = _tokens(batch, length)
    return args, {**kwargs, "use_cache": True}


def _labelled(batch: int, length: int = 10) -> Call:
    args, kwargs = _tokens(batch, length)
    return args, {**kwargs, "labels": integers(VOCABULARY, batch, length, low=3)}


def _embedded(batch: int, length: int = 10) -> Call:
    places = torch.arange(length).repeat(batch, 1)
    return (), {"inputs_embeds": floats(batch, length, 32), "position_ids": places + 1, "use_cache": False}


def _decoder(
    name: str, build: Callable[[], nn.Module], inputs: Callable[..., Call] = _tokens, **rest: Any
) -> ZooEntry:
    rest.setdefault("other_sizes", lambda: [inputs(2, 7), inputs(2, 13)])
    return zoo_entry(name, "language", build, inputs, **rest)


ENTRIES = [
    _decoder(
        "hf_gpt2",
        hf("GPT2LMHeadModel", "GPT2Config", **_GPT2),
        notes="Conv1D: a linear with a transposed weight",
    ),
    _decoder("hf_gpt2_loss", hf("GPT2LMHeadModel", "GPT2Config", **_GPT2), _labelled),
    _decoder(
        "hf_gpt2_cache",
        hf("GPT2LMHeadModel", "GPT2Config", **_GPT2),
        _cached,
        notes="cache object in the output",
    ),
    _decoder(
        "hf_gpt_neox", hf("GPTNeoXForCausalLM", "GPTNeoXConfig", **{**_LLAMA, "num_key_value_heads": 4})
    ),
    _decoder("hf_llama", hf("LlamaForCausalLM", "LlamaConfig", **_LLAMA), notes="grouped-query attention"),
    _decoder("hf_llama_padded", hf("LlamaForCausalLM", "LlamaConfig", **_LLAMA), _masked),
    _decoder("hf_llama_eager", hf("LlamaForCausalLM", "LlamaConfig", **_LLAMA, attn_implementation="eager")),
    _decoder(
        "hf_llama_cache",
        hf("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
        _cached,
        notes="cache object in the output",
    ),
    _decoder("hf_llama_embeds", hf("LlamaModel", "LlamaConfig", **_LLAMA), _embedded),
    _decoder("hf_qwen2", hf("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA, tie_word_embeddings=True)),
    _decoder(
        "hf_qwen3",
        hf("Qwen3ForCausalLM", "Qwen3Config", **_LLAMA, head_dim=16),
        notes="norms on queries and keys",
    ),
    _decoder(
        "hf_mistral",
        hf("MistralForCausalLM", "MistralConfig", **_LLAMA, sliding_window=4),
        notes="sliding window mask",
    ),
    _decoder("hf_gemma", hf("GemmaForCausalLM", "GemmaConfig", **_GEMMA)),
    _decoder(
        "hf_gemma2",
        hf("Gemma2ForCausalLM", "Gemma2Config", **_GEMMA, sliding_window=4),
        _masked,
        notes="soft caps",
    ),
    _decoder(
        "hf_phi",
        hf("PhiForCausalLM", "PhiConfig", **{**_LLAMA, "num_key_value_heads": 4}),
        notes="partial rotary",
    ),
    _decoder(
        "hf_mixtral",
        hf("MixtralForCausalLM", "MixtralConfig", **_LLAMA, num_local_experts=4),
        notes="top-2 of 4 experts",
    ),
    _decoder(
        "hf_mixtral_batched",
        hf(
            "MixtralForCausalLM",
            "MixtralConfig",
            **_LLAMA,
            num_local_experts=4,
            experts_implementation="batched_mm",
        ),
        notes="experts as gathered batched matmuls",
    ),
    _decoder(
        "hf_opt",
        hf(
            "OPTForCausalLM",
            "OPTConfig",
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=64,
            max_position_embeddings=64,
            word_embed_proj_dim=16,
            init_std=0.2,
        ),
        _masked,
    ),
    _decoder(
        "hf_bloom",
        hf(
            "BloomForCausalLM",
            "BloomConfig",
            vocab_size=VOCABULARY,
            hidden_size=32,
            n_layer=2,
            n_head=4,
            **SPREAD,
        ),
        notes="ALiBi",
    ),
    _decoder(
        "hf_falcon",
        hf("FalconForCausalLM", "FalconConfig", **{**_LLAMA, "num_key_value_heads": None}),
        _masked,
    ),
    _decoder(
        "hf_mamba",
        hf("MambaForCausalLM", "MambaConfig", **_MAMBA),
        other_sizes=list,
        notes="Python loop over time in the reference scan",
    ),
    _decoder(
        "hf_mamba2",
        hf(
            "Mamba2ForCausalLM",
            "Mamba2Config",
            **{**_MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
        ),
        other_sizes=list,
        notes="pads the length to a multiple of the chunk",
    ),
]
