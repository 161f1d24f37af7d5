"""The decoder families of transformers: one entry each, with its differences from Llama."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Family:
    """The parts of a decoder, by their names in its module.

    Attributes:
        norms: before and after attention, before and after feed-forward; empty if absent.
        inputs: matrices of the feed-forward part: gate and up, one for both, or only one without a gate.
        activation: the config key that names the activation.
        norm_kind: the kind of norms that are not torch's.
        norm_offset: what a norm adds to its weight before multiplying.
        groups: how heads are grouped in one matrix for queries, keys and values.
        head_norms: norms of queries and keys, if any.
        interleaved: rotated pairs are neighbouring channels, not channels of the two halves.
        rotates_windows_only: layers without a window have no positions.
        residual_factor: multiplies what attention and feed-forward add to the residual.
        not_supported: config settings that change the computation, each with a test for this config.
    """

    decoder: str = "model"
    embedding: str = "embed_tokens"
    embedding_factor: float = 1.0
    positions: str = ""
    position_offset: int = 0
    layers: str = "layers"
    norm: str = "norm"
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    norm_kind: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    parallel: bool = False
    residual_factor: float = 1.0
    attention: str = "self_attn"
    queries_keys_values: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    groups: int = 1
    clip: float = 0.0
    head_norms: tuple[str, str] = ("q_norm", "k_norm")
    interleaved: bool = False
    rotates_windows_only: bool = False
    softcap: float = 0.0
    output: str = "o_proj"
    feed_forward: str = "mlp"
    inputs: tuple[str, ...] = ("gate_proj", "up_proj")
    gated: bool = True
    down: str = "down_proj"
    activation: str = "hidden_act"
    logit_factor: float = 1.0
    not_supported: Mapping[str, bool] = field(default_factory=dict)


def _gemma2(config: Any) -> Family:
    return Family(
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        embedding_factor=config.hidden_size**0.5,
        norm_offset=1.0,
        activation="hidden_activation",
        softcap=getattr(config, "attn_logit_softcapping", None) or 0.0,
        not_supported={
            "use_bidirectional_attention": bool(getattr(config, "use_bidirectional_attention", False))
        },
    )


def _olmo2(config: Any) -> Family:
    return Family(norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"))


def _cohere(config: Any) -> Family:
    return Family(
        norms=("input_layernorm", "", "", ""),
        norm_kind="layer",
        parallel=True,
        interleaved=True,
        logit_factor=config.logit_scale,
        not_supported={"use_qk_norm": bool(getattr(config, "use_qk_norm", False))},
    )


def _falcon(config: Any) -> Family:
    new, parallel = config.new_decoder_architecture, config.parallel_attn
    norms = ("input_layernorm", "", "" if parallel else "post_attention_layernorm", "")
    heads = config.num_kv_heads if new else 1 if config.multi_query else config.num_attention_heads
    return Family(
        decoder="transformer",
        embedding="word_embeddings",
        layers="h",
        norm="ln_f",
        norms=("ln_attn", "", "ln_mlp", "") if new and config.num_ln_in_parallel_attn == 2 else norms,
        parallel=parallel,
        attention="self_attention",
        queries_keys_values=("query_key_value",),
        groups=heads,
        output="dense",
        inputs=("dense_h_to_4h",),
        gated=False,
        down="dense_4h_to_h",
        activation="activation",
        not_supported={
            "alibi": bool(config.alibi),
            "new_decoder_architecture without parallel_attn": bool(new and not parallel),
        },
    )


_AS_LLAMA = (
    *("llama", "mistral", "qwen2", "qwen3", "smollm3", "seed_oss"),
    *("mixtral", "qwen2_moe", "qwen3_moe"),
)

FAMILIES: dict[str, Callable[[Any], Family]] = {
    **dict.fromkeys(_AS_LLAMA, lambda config: Family()),
    "phi3": lambda config: Family(queries_keys_values=("qkv_proj",), inputs=("gate_up_proj",)),
    "gemma": lambda config: Family(norm_offset=1.0, embedding_factor=config.hidden_size**0.5),
    "gemma2": _gemma2,
    "gemma3_text": lambda config: replace(_gemma2(config), softcap=0.0),  # the model does not use it either
    "phi": lambda config: Family(
        norm="final_layernorm",
        norms=("input_layernorm", "", "", ""),
        parallel=True,
        head_norms=("q_layernorm", "k_layernorm"),
        output="dense",
        inputs=("fc1",),
        gated=False,
        down="fc2",
    ),
    "gpt_neox": lambda config: Family(
        decoder="gpt_neox",
        embedding="embed_in",
        norm="final_layer_norm",
        parallel=config.use_parallel_residual,
        attention="attention",
        queries_keys_values=("query_key_value",),
        groups=config.num_attention_heads,
        output="dense",
        inputs=("dense_h_to_4h",),
        gated=False,
        down="dense_4h_to_h",
    ),
    "gpt2": lambda config: Family(
        decoder="transformer",
        embedding="wte",
        positions="wpe",
        layers="h",
        norm="ln_f",
        norms=("ln_1", "", "ln_2", ""),
        attention="attn",
        queries_keys_values=("c_attn",),
        output="c_proj",
        inputs=("c_fc",),
        gated=False,
        down="c_proj",
        activation="activation_function",
        not_supported={"add_cross_attention": bool(config.add_cross_attention)},
    ),
    "opt": lambda config: Family(
        decoder="model.decoder",
        positions="embed_positions",
        position_offset=2,
        norm="final_layer_norm",
        norms=("self_attn_layer_norm", "", "final_layer_norm", ""),
        output="out_proj",
        feed_forward="",
        inputs=("fc1",),
        gated=False,
        down="fc2",
        activation="activation_function",
        not_supported={
            "do_layer_norm_before=False": not config.do_layer_norm_before,
            "word_embed_proj_dim other than hidden_size": config.word_embed_proj_dim != config.hidden_size,
            "_remove_final_layer_norm": bool(config._remove_final_layer_norm),
        },
    ),
    "falcon": _falcon,
    "granite": lambda config: Family(
        embedding_factor=config.embedding_multiplier,
        residual_factor=config.residual_multiplier,
        logit_factor=1 / config.logits_scaling,
    ),
    "starcoder2": lambda config: Family(inputs=("c_fc",), gated=False, down="c_proj"),
    "stablelm": lambda config: Family(
        norms=("input_layernorm", "", "" if config.use_parallel_residual else "post_attention_layernorm", ""),
        parallel=config.use_parallel_residual,
        not_supported={"qk_layernorm": bool(config.qk_layernorm)},
    ),
    "glm4": lambda config: Family(
        norms=(
            "input_layernorm",
            "post_self_attn_layernorm",
            "post_attention_layernorm",
            "post_mlp_layernorm",
        ),
        interleaved=True,
        inputs=("gate_up_proj",),
    ),
    "cohere": _cohere,
    "cohere2": lambda config: replace(_cohere(config), rotates_windows_only=True),
    "olmoe": lambda config: Family(not_supported={"clip_qkv": config.clip_qkv is not None}),
    "olmo": lambda config: Family(clip=config.clip_qkv or 0.0),
    "olmo2": _olmo2,
    "olmo3": _olmo2,
}
