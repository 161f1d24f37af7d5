"""The model families that llama.cpp supports, and what its code fixes for each.

A file holds tensors and settings. Everything else is hard-coded in llama.cpp for each architecture: the activation, the
norms, where the head comes from. A model that needs something else is refused with the name of its setting, because
llama.cpp would load the file and compute something different.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from sparsebit.errors import SparsebitError

TANH_GELU = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family: its name in llama.cpp, how its files differ, and what llama.cpp's code fixes."""

    architecture: str
    norm: Literal["rms", "layer"] = "rms"
    activations: tuple[str, ...] = ("silu",)
    # Rotates neighbouring channels, where transformers rotates halves: rows of query and key are reordered.
    rotates_neighbours: bool = False
    splits_by_head: bool = False  # the model stores fused query, key and value rows head by head
    norms_add_one: bool = False  # the model multiplies by 1 + weight, llama.cpp by the weight
    # "own": the file must contain the head, even if tied. "embedding": llama.cpp always uses the embedding.
    head: Literal["either", "own", "embedding"] = "either"
    windows: bool = False  # it has a setting for sliding-window layers
    rope_scaling: tuple[str, ...] = ("linear", "yarn")  # beside "default"
    rotates_a_part: bool = False  # of the channels of a head
    free_head_width: bool = False  # heads times head width may differ from the hidden size
    # Copied unchanged: the model's setting, and the method of gguf's writer that adds it.
    settings: Mapping[str, str] = field(default_factory=dict)
    # Hard-coded in llama.cpp: the model's setting, and the values that agree with the code.
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


_NO_BIAS: dict[str, tuple[object, ...]] = {"attention_bias": (False,)}
_NO_INNER_BIAS: dict[str, tuple[object, ...]] = {"mlp_bias": (False,)}
_CAUSAL: dict[str, tuple[object, ...]] = {"use_bidirectional_attention": (False, None)}
_EXPERTS = {"num_experts": "add_expert_count", "num_experts_per_tok": "add_expert_used_count"}
_NARROW_EXPERTS = {**_EXPERTS, "moe_intermediate_size": "add_expert_feed_forward_length"}
# has experts
_EVERY_LAYER: dict[str, tuple[object, ...]] = {"decoder_sparse_step": (1,), "mlp_only_layers": ([], None)}
_LLAMA = Family(
    architecture="llama",
    rotates_neighbours=True,
    rope_scaling=("linear", "llama3", "yarn"),
    free_head_width=True,
)
_OLMO2 = Family(architecture="olmo2", head="own", fixed=_NO_BIAS)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": Family(architecture="qwen2"),
    "qwen3": Family(architecture="qwen3", free_head_width=True, fixed=_NO_BIAS),
    "phi3": Family(architecture="phi3", rope_scaling=("longrope", "yarn"), rotates_a_part=True),
    "gemma": Family(
        architecture="gemma",
        activations=TANH_GELU,
        norms_add_one=True,
        head="embedding",
        free_head_width=True,
        fixed=_NO_BIAS | _CAUSAL,
    ),
    "gemma2": Family(
        architecture="gemma2",
        activations=TANH_GELU,
        norms_add_one=True,
        head="embedding",
        windows=True,
        free_head_width=True,
        settings={
            "attn_logit_softcapping": "add_attn_logit_softcapping",
            "final_logit_softcapping": "add_final_logit_softcapping",
        },
        fixed=_NO_BIAS | _CAUSAL,
    ),
    "gemma3_text": Family(
        architecture="gemma3",
        rope_scaling=("linear",),
        activations=TANH_GELU,
        norms_add_one=True,
        windows=True,
        free_head_width=True,
        settings={"final_logit_softcapping": "add_final_logit_softcapping"},
        fixed=_NO_BIAS | _CAUSAL | {"attn_logit_softcapping": (None,)},
    ),
    "phi": Family(
        architecture="phi2",
        rotates_a_part=True,
        norm="layer",
        activations=TANH_GELU,
        head="own",
        fixed={"qk_layernorm": (False,)},
    ),
    "gpt2": Family(
        architecture="gpt2",
        norm="layer",
        activations=TANH_GELU,
        fixed={
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
    ),
    # llama.cpp computes GELU by its tanh formula for every model, also in its makers' files of these two.
    "gpt_neox": Family(
        architecture="gptneox",
        rotates_a_part=True,
        norm="layer",
        activations=("gelu", *TANH_GELU),
        splits_by_head=True,
        head="own",
        settings={"use_parallel_residual": "add_parallel_residual"},
        fixed={"attention_bias": (True,)},
    ),
    "falcon": Family(
        architecture="falcon",
        norm="layer",
        activations=("gelu", *TANH_GELU),
        splits_by_head=True,
        fixed={"alibi": (False,), "bias": (False,), "parallel_attn": (True,)},
    ),
    "mixtral": replace(_LLAMA, settings=_EXPERTS),
    "qwen2_moe": Family(
        architecture="qwen2moe",
        head="own",
        settings={
            **_NARROW_EXPERTS,
            "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
        },
        fixed=_EVERY_LAYER | {"norm_topk_prob": (False,)},
    ),
    "qwen3_moe": Family(
        architecture="qwen3moe",
        free_head_width=True,
        settings=_NARROW_EXPERTS,
        fixed=_NO_BIAS | _EVERY_LAYER | {"norm_topk_prob": (True,)},
    ),
    "stablelm": Family(
        architecture="stablelm",
        rotates_a_part=True,
        norm="layer",
        head="own",
        fixed={"qk_layernorm": (False,)},
    ),
    "olmo": Family(
        architecture="olmo",
        norm="layer",
        rotates_neighbours=True,
        settings={"clip_qkv": "add_clamp_kqv"},
        fixed=_NO_BIAS,
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, windows=True, rope_scaling=("yarn",)),
    "granite": Family(
        architecture="granite",
        rotates_neighbours=True,
        rope_scaling=_LLAMA.rope_scaling,
        free_head_width=True,
        settings={
            "embedding_multiplier": "add_embedding_scale",
            "attention_multiplier": "add_attention_scale",
            "residual_multiplier": "add_residual_scale",
            "logits_scaling": "add_logit_scale",
        },
    ),
    "starcoder2": Family(
        architecture="starcoder2", norm="layer", activations=TANH_GELU, fixed={"use_bias": (True,)}
    ),
    "smollm3": Family(
        architecture="smollm3",
        rotates_neighbours=True,
        free_head_width=True,
        fixed=_NO_BIAS | _NO_INNER_BIAS,
    ),
    "olmoe": Family(
        architecture="olmoe",
        head="own",
        settings=_EXPERTS,
        fixed=_NO_BIAS | {"clip_qkv": (None,), "norm_topk_prob": (False,)},
    ),
    "cohere": Family(
        architecture="command-r",
        norm="layer",
        head="embedding",
        settings={"logit_scale": "add_logit_scale"},
        fixed=_NO_BIAS | {"use_qk_norm": (False,)},
    ),
    "cohere2": Family(
        architecture="cohere2",
        norm="layer",
        head="embedding",
        windows=True,
        settings={"logit_scale": "add_logit_scale"},
        fixed=_NO_BIAS,
    ),
    "gpt_bigcode": Family(
        architecture="starcoder",
        norm="layer",
        activations=TANH_GELU,
        fixed={"multi_query": (True,), "scale_attn_weights": (True,), "add_cross_attention": (False,)},
    ),
    "nemotron": Family(
        architecture="nemotron",
        norm="layer",
        activations=("relu2",),
        norms_add_one=True,
        head="own",
        rotates_a_part=True,
    ),
    "arcee": replace(_LLAMA, architecture="arcee", activations=("relu2",), fixed=_NO_BIAS | _NO_INNER_BIAS),
    "glm4": Family(architecture="glm4", rotates_a_part=True, free_head_width=True),
    "seed_oss": Family(
        architecture="seed_oss",
        free_head_width=True,
        fixed=_NO_INNER_BIAS | {"attention_out_bias": (False,)},
    ),
}

# Families that cannot be written, with the reason.
IMPOSSIBLE = {"opt": "llama.cpp has no architecture for it"}


class Mismatch(NamedTuple):
    """A setting of a model that llama.cpp computes differently."""

    setting: str
    expected: str
    got: object


def family_of(config: Any) -> Family:
    """The family of a model by its config; an unknown one is an error."""
    if found := FAMILIES.get(config.model_type):
        return found
    reason = IMPOSSIBLE.get(config.model_type, "its architecture is not in the table of families")
    raise SparsebitError(
        f"gguf files cannot be written for {config.model_type}: {reason}",
        expected=", ".join(FAMILIES),
        hint="choose another format",
    )


def require_family(config: Any) -> Family:
    """The family of a model that llama.cpp computes as transformers does; others are refused by their setting."""
    family = family_of(config)
    if mismatch := next(_mismatches(config, family), None):
        raise SparsebitError(
            f"llama.cpp hard-codes {mismatch.setting} for {config.model_type}",
            expected=mismatch.expected,
            got=str(mismatch.got),
            hint="choose another format",
        )
    return family


def first_setting(config: Any, *names: str) -> Any:
    """The first of these settings that is present and not None, or None."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def head_width(config: Any) -> int:
    """Channels of an attention head."""
    return int(first_setting(config, "head_dim") or config.hidden_size // config.num_attention_heads)


def window_period(config: Any) -> int:
    """The number of layers up to and including the first without a window; 0 if all have one.

    Example:
        >>> from types import SimpleNamespace
        >>> window_period(SimpleNamespace(layer_types=["sliding_attention", "full_attention"] * 2))
        2
    """
    types = getattr(config, "layer_types", None) or []
    return types.index("full_attention") + 1 if "full_attention" in types else 0


def _mismatches(config: Any, family: Family) -> Iterator[Mismatch]:
    activation = first_setting(config, "hidden_activation", "hidden_act", "activation_function", "activation")
    if activation not in family.activations:
        yield Mismatch("the activation", " or ".join(family.activations), activation)
    for setting, allowed in family.fixed.items():
        value = getattr(config, setting, allowed[0])
        if value not in allowed:
            yield Mismatch(setting, " or ".join(map(str, allowed)), value)
    wide, hidden = head_width(config) * config.num_attention_heads, config.hidden_size
    if not family.free_head_width and wide != hidden:
        yield Mismatch("head_dim", f"{hidden // config.num_attention_heads}", head_width(config))
    if family.head == "embedding" and not config.tie_word_embeddings:
        yield Mismatch("tie_word_embeddings", "True", False)
    yield from _window_mismatches(config, family)
    yield from _mismatches_of_one_family(config, family)


def _window_mismatches(config: Any, family: Family) -> Iterator[Mismatch]:
    period, types = window_period(config), getattr(config, "layer_types", None) or []
    setting = "the order of sliding-window layers"
    if family.windows and any(
        (kind == "full_attention") != (period > 0 and layer % period == period - 1)
        for layer, kind in enumerate(types)
    ):
        yield Mismatch(setting, "one pattern repeated, which ends with a layer without a window", types)
    if family.architecture in ("gemma2", "cohere2") and "sliding_attention" not in types:
        yield Mismatch(setting, "at least one layer with a window", types)


def _mismatches_of_one_family(config: Any, family: Family) -> Iterator[Mismatch]:
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    if family.architecture == "gemma2":
        for setting in family.settings:
            if getattr(config, setting) is None:
                yield Mismatch(setting, "a number", None)
    if family.architecture in ("gemma2", "gemma3"):
        # Its code recognizes the largest model of each generation by its number of layers.
        largest = layers == {"gemma2": 46, "gemma3": 62}[family.architecture]
        wanted = config.hidden_size // heads if largest else head_width(config)
        if config.query_pre_attn_scalar != wanted:
            yield Mismatch("query_pre_attn_scalar", str(wanted), config.query_pre_attn_scalar)
    if family.architecture == "smollm3":
        rotated = [int((layer + 1) % 4 != 0) for layer in range(layers)]
        if [int(one) for one in config.no_rope_layers] != rotated:
            yield Mismatch("no_rope_layers", str(rotated), config.no_rope_layers)
    if family.architecture == "olmoe" and config.num_key_value_heads != heads:
        yield Mismatch("num_key_value_heads", str(heads), config.num_key_value_heads)
