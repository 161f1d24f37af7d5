"""Attention as one operator."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.ops.spellings import family


def attention_macs(call: OpCall) -> int:
    """Query [..., L, E] by key [..., S, E], then scores by value [..., S, V]; causal masks halve nothing."""
    query, source, value = call.shape("query"), call.shape("key")[-2], call.shape("value")[-1]
    return math.prod(query[:-1]) * source * (query[-1] + value)


def multi_head_attention_macs(call: OpCall) -> int:
    """The three input projections, the two products, the output projection."""
    query, key, value = call.shape("query"), call.shape("key"), call.shape("value")
    if call.module is not None:
        assert isinstance(call.module, nn.MultiheadAttention)
        width, batch_first = int(call.module.embed_dim), call.module.batch_first
    else:
        width, batch_first = query[-1], False
    batch = 1 if len(query) == 2 else query[0 if batch_first else 1]
    target, source = math.prod(query[:-1]) // batch, math.prod(key[:-1]) // batch
    projected = target * query[-1] + source * key[-1] + source * value[-1] + target * width
    return batch * width * (projected + 2 * target * source)


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
        macs=multi_head_attention_macs,
    ),
)
