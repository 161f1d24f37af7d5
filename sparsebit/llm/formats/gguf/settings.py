"""The settings of a model as the keys of a GGUF file: sizes, constants and windows."""

from __future__ import annotations

import logging
from typing import Any

from sparsebit.llm.formats.gguf.families import Family, first_setting, head_width, window_period

logger = logging.getLogger(__name__)


def add_settings(writer: Any, config: Any, family: Family) -> None:
    """Add every key that llama.cpp needs apart from those of the tokenizer and the rotary embeddings."""
    heads, width = config.num_attention_heads, head_width(config)
    inner = first_setting(config, "intermediate_size", "ffn_hidden_size", "n_inner") or 4 * config.hidden_size
    writer.add_context_length(_context(writer, config, family))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_value_heads(config))
    writer.add_key_length(width)
    writer.add_value_length(width)
    if family.norm == "rms":
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        eps = first_setting(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(1e-5 if eps is None else eps)  # OLMo's epsilon is not a setting
    writer.add_vocab_size(config.vocab_size)
    for setting, method in family.settings.items():
        if (value := getattr(config, setting, None)) is not None:
            getattr(writer, method)(value)


def key_value_heads(config: Any) -> int:
    """The number of key and value heads; Falcon spreads it over three settings."""
    if config.model_type == "falcon":
        if config.new_decoder_architecture:
            return int(config.num_kv_heads)
        return 1 if config.multi_query else int(config.num_attention_heads)
    return int(first_setting(config, "num_key_value_heads") or config.num_attention_heads)


def _context(writer: Any, config: Any, family: Family) -> int:
    """The context length, after adding the window keys. Without such keys it is the window."""
    longest = int(config.max_position_embeddings)
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if not window or (types is not None and "sliding_attention" not in types):
        return longest
    if not family.windows:
        if window < longest:
            logger.warning(
                "llama.cpp has no sliding windows for %s: the file's context length is the window, %d instead of %d",
                config.model_type,
                window,
                longest,
            )
        return min(int(window), longest)
    writer.add_sliding_window(window)
    writer.add_sliding_window_pattern(window_period(config))
    return longest
