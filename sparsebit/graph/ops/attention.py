"""Attention as one operator."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.estimate import count_by_running
from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.ops.spellings import family


def attention_macs(call: OpCall) -> int:
    """Query [..., L, E] by key [..., S, E], then scores by value [..., S, V]; a causal mask does not reduce them."""
    query, source, value = call.shape("query"), call.shape("key")[-2], call.shape("value")[-1]
    return math.prod(query[:-1]) * source * (query[-1] + value)


_attention = family("attention", activations=("query", "key", "value"), random=True)
_KERNELS = (
    *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
    *("fused_attention_overrideable", "attention_math", "attention_math_for_mps"),
)

OPS = (
    _attention(
        "scaled_dot_product_attention",
        "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False",
        *(f"aten::_scaled_dot_product_{kernel}" for kernel in _KERNELS),
        "torch.nn.attention.flex_attention.flex_attention",
        aliases={"attn_bias": "attn_mask"},
        channels="attention",
        sizes="attention",
        macs=attention_macs,
    ),
    _attention(
        "multi_head_attention",
        "query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,"
        " average_attn_weights=True, is_causal=False, num_heads=None, dropout=0.0",
        only=(nn.MultiheadAttention, F.multi_head_attention_forward),
        aliases={"dropout_p": "dropout"},
        macs=count_by_running,
    ),
)
