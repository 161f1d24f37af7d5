"""A small model with random weights of every model type of transformers that predicts tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 96
LARGEST = 30_000_000  # parameters of a model that counts as small
GROUPS = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM"),
    "seq2seq": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
}
KIND_LISTS = ("layer_types", "layers_block_type", "mlp_layer_types")

# What each setting becomes in every config that has it.
_BY_VALUE: tuple[tuple[int, str], ...] = (
    (
        64,
        "hidden_size d_model n_embd dim embed_dim hidden_dim emb_dim dim_model embedding_size word_embed_proj_dim "
        "decoder_hidden_size encoder_hidden_size output_hidden_size token_embedding_size mamba_hidden_size",
    ),
    (
        2,
        "num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_encoder_layers "
        "num_decoder_layers depth num_blocks speech_encoder_layers text_encoder_layers text_decoder_layers "
        "t2u_encoder_layers t2u_decoder_layers decoder_num_hidden_layers encoder_num_hidden_layers",
    ),
    (
        4,
        "num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads "
        "num_encoder_attention_heads num_decoder_attention_heads attention_heads encoder_num_attention_heads "
        "decoder_num_attention_heads speech_encoder_attention_heads text_encoder_attention_heads",
    ),
    (
        2,
        "num_key_value_heads num_kv_heads num_attention_groups decoder_num_key_value_heads "
        "encoder_num_key_value_heads multi_query_group_num",
    ),
    (
        128,
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_ff ffn_hidden_size dff dim_ff "
        "feed_forward_hidden_size mlp_hidden_size intermediate_size_mlp dense_intermediate_size inner_dim mlp_dim "
        "encoder_intermediate_size decoder_intermediate_size d_inner speech_encoder_intermediate_size "
        "text_encoder_ffn_dim t2u_encoder_ffn_dim",
    ),
    (
        16,
        "d_kv head_dim attention_head_size kv_channels dim_head d_head swa_head_dim global_head_dim "
        "attention_head_dim linear_key_head_dim linear_value_head_dim v_head_dim mamba_head_dim mamba_d_head "
        "index_head_dim qk_nope_head_dim qk_rope_head_dim decoder_head_dim encoder_head_dim swa_v_head_dim "
        "lm_head_rank num_mel_bins hidden_size_per_layer_input",
    ),
    (
        64,
        "moe_intermediate_size expert_ffn_hidden_size shared_expert_intermediate_size shared_intermediate_size "
        "moe_shared_expert_intermediate_size moe_layer_intermediate_size expert_hidden_size moe_ffn_dim "
        "moe_expert_ffn_hidden_size shared_expert_ffn_hidden_size",
    ),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts"),
    (
        2,
        "num_experts_per_tok moe_topk top_k_experts moe_top_k num_selected_experts moe_k experts_per_token "
        "num_experts_per_token",
    ),
    (1, "n_group topk_group num_expert_group moe_num_groups num_groups mamba_n_groups n_groups"),
    (1, "n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace"),
    (32, "q_lora_rank kv_lora_rank o_lora_rank kv_lora_dim q_lora_dim image_size"),
    (
        4,
        "index_n_heads linear_num_key_heads linear_num_value_heads mamba_n_heads n_mamba_heads mamba_num_heads "
        "num_mamba_heads linear_num_heads max_span_width",
    ),
    (
        8,
        "index_topk state_size ssm_state_size mamba_d_state mamba_dt_rank time_step_rank rotary_dim laurel_rank "
        "sliding_window attention_window_size local_attention_window attention_chunk_size local_attention "
        "chunk_size mamba_chunk_size patch_size",
    ),
    (
        VOCABULARY,
        "vocab_size vocab_size_per_layer_input tokenizer_vocab_size target_vocab_size t2u_vocab_size "
        "unit_hifi_gan_vocab_size",
    ),
    (
        128,
        "max_position_embeddings n_positions max_target_positions max_source_positions max_seq_len n_ctx "
        "max_sequence_length max_seq_length original_max_position_embeddings context_length "
        "max_encoder_position_embeddings max_decoder_position_embeddings",
    ),
    (0, "num_nextn_predict_layers num_hash_layers chunk_size_feed_forward bos_token_id cls_token_id"),
    (1, "eos_token_id decoder_start_token_id sep_token_id"),
    (2, "pad_token_id altup_num_inputs"),
    (3, "num_channels"),
)
SMALL: dict[str, int | None] = {name: value for value, names in _BY_VALUE for name in names.split()} | {
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}
_SET_IF_NONE = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "vocab_size")

_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "n_mamba_heads": 2}
_BLT = {"hidden_size_global": 64, "num_key_value_heads": 4}
_ROPE = {"rope_theta": 1e4, "rope_type": "default", "mrope_section": [4, 2, 2]}
# Types whose settings have to fit each other in other ways, or are missing from the default config.
OWN: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": _MAMBA,
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": None},
    "blt": {
        "encoder_hash_byte_group_vocab": 101,
        "encoder_hash_byte_group_size": [3, 4],
        "patch_size": 4,
    },
    "blt_local_encoder": _BLT,
    "blt_local_decoder": _BLT,
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _ROPE)},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},  # as in its checkpoints
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "dots1": {
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    },
    "esmc": {"num_key_value_heads": 4},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
        "intermediate_size": 128,
    },
    "glm4": {"eos_token_id": 1},
    "gpt_bigcode": {"num_key_value_heads": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_dt_rank": 8,
    },
    "led": {
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64,
        "attention_window": 8,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longformer": {"attention_window": [8, 8]},
    "longt5": {"decoder_start_token_id": 2},
    "luke": {"entity_vocab_size": 50, "entity_emb_size": 32},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "ministral": {"head_dim": 16},
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    # Checkpoints hold queries, keys and values in one tensor of three equal parts.
    "nemotron3_5_transcribe_asr_audio": {"num_key_value_heads": 4},
    "nemotron3_5_transcribe_word_timestamp": {"blank_token_id": 95, "num_key_value_heads": 4},
    "nemotron3_diarization_audio": {"num_key_value_heads": 4},
    "nemotron3_diarization": {"head_config": {"audio_hidden_size": 64}},
    "mra": {"block_per_row": 2},
    "perceiver": {
        "num_latents": 16,
        "d_latents": 64,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
        "qk_channels": 64,
        "v_channels": 64,
        "max_position_embeddings": 32,
    },
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "reformer": {
        "is_decoder": True,
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [32, 32],
        "attn_layers": ["lsh", "local"],
        "lsh_attn_chunk_length": 8,
        "local_attn_chunk_length": 8,
        "num_buckets": 4,
        "hash_seed": 0,
    },
    "masked/reformer": {"is_decoder": False},
    "switch_transformers": {"decoder_start_token_id": 2},
    "t5": {"decoder_start_token_id": 2},
    "vibevoice_acoustic_tokenizer_encoder": {
        "num_filters": 4,
        "depths": [1, 1, 1],
        "downsampling_ratios": [2, 2],
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 5,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "n_mamba_heads": 2,
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "n_mamba_heads": 8,
        "mamba_headdim": 16,
        "attention_head_dim": 32,
        "attention_hidden_size": 128,
        "num_mem_blocks": 1,
    },
    "zaya": {"num_experts_per_tok": 1},
}


def all_types() -> list[str]:
    """Every model type, as "causal/llama"."""
    from transformers.models.auto import modeling_auto

    return [
        f"{group}/{kind}"
        for group, (mapping, _) in GROUPS.items()
        for kind in sorted(getattr(modeling_auto, mapping))
    ]


def model_class(name: str) -> Any:
    """The class of a type that predicts tokens."""
    import transformers

    group, _, kind = name.partition("/")
    found = getattr(transformers, GROUPS[group][1])._model_mapping[transformers.CONFIG_MAPPING[kind]]
    return found[0] if isinstance(found, tuple) else found


def small_settings(config: Any, own: dict[str, Any], every_kind: bool) -> dict[str, Any]:
    """Arguments for a small config like this one; with ``every_kind``, a layer of each kind that it lists."""
    import transformers

    found: dict[str, Any] = {}
    for key, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            part = small_settings(value, OWN.get(value.model_type, {}), every_kind)
            found[key] = {"model_type": value.model_type, **part}
        elif (
            key in SMALL
            and not isinstance(value, list | tuple | dict)
            and (value is not None or key in (*_SET_IF_NONE, "num_key_value_heads"))
        ):
            found[key] = SMALL[key]
    for key in KIND_LISTS if every_kind and "num_hidden_layers" in found else ():
        kinds = list(dict.fromkeys(vars(config).get(key) or ()))
        if len(kinds) > 1:
            kinds.sort(key="full_attention".__eq__)  # some classes want it last
            found["num_hidden_layers"] = count = max(len(kinds), found["num_hidden_layers"])
            found[key] = [kinds[0]] * (count - len(kinds)) + kinds
    for key in KIND_LISTS:
        if missing := found.get("num_hidden_layers", 0) - len(found.get(key, ())):
            found |= {key: [found[key][0]] * missing + found[key]} if key in found else {}
    if "qk_rope_head_dim" in found and isinstance(getattr(config, "num_key_value_heads", None), int):
        found["num_key_value_heads"] = found["num_attention_heads"]
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = found[key] | value if both else value
    return found


def build_small(name: str) -> nn.Module:
    """The small model of a type; what transformers raises where it cannot build one."""
    import transformers

    kind = name.partition("/")[2]
    default, own = transformers.CONFIG_MAPPING[kind](), OWN.get(kind, {}) | OWN.get(name, {})
    try:
        config, count = _config(name, small_settings(default, own, True))
    except Exception:
        config, count = _config(name, small_settings(default, own, False))
    if count > LARGEST:
        raise ValueError(f"does not become small: {count} parameters")
    torch.manual_seed(0)
    model: nn.Module = model_class(name)._from_config(config)
    stir(model)
    return model.eval()


def _config(name: str, settings: dict[str, Any]) -> tuple[Any, int]:
    import transformers

    config, made = transformers.CONFIG_MAPPING[name.partition("/")[2]](**settings), model_class(name)
    if not isinstance(config, made.config_class):  # Musicgen's is that of a decoder
        config = next(one for one in vars(config).values() if isinstance(one, made.config_class))
    with torch.device("meta"):
        model = made._from_config(config)
    return config, sum(one.numel() for one in model.parameters())


@torch.no_grad()
def stir(model: nn.Module) -> None:
    """Give weights a spread at which a mistake shows, and norms and biases values of their own."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if not parameter.is_floating_point() or any(word in last for word in ("A_log", "decay", "time_")):
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            parameter.add_(0.05 * noise)
        elif parameter.dim() > 1 and not float(parameter.std()) >= 0.09:
            parameter.copy_(0.15 * noise)


def random_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    """Token ids [rows, length] without special ones."""
    return torch.randint(3, VOCABULARY - 3, (rows, length), generator=torch.Generator().manual_seed(seed))
