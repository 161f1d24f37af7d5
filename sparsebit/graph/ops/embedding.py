"""Lookups in a weight of [vocabulary, features]: the features are its output channels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named


def embedding_with_weight(module: Any, weight: Tensor, x: Tensor) -> Tensor:
    """An embedding module with another table; ``max_norm`` would rewrite it and is left out."""
    return F.embedding(
        x, weight, module.padding_idx, None, module.norm_type, module.scale_grad_by_freq, module.sparse
    )


OPS = (
    OpSpec(
        name="embedding",
        targets=named("embedding", nn.Embedding),
        family="embedding",
        signature="input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False,"
        " sparse=False",
        orders={torch.embedding: "weight, input, padding_idx=-1, scale_grad_by_freq=False, sparse=False"},
        aliases={"indices": "input"},
        weight="weight",
        weight_axes=(1, 0),
        channel_axis=-1,
        channels="embedding",
        with_weight=embedding_with_weight,
    ),
    OpSpec(
        name="embedding_bag",
        targets=named(
            "embedding_bag", nn.EmbeddingBag, "aten::_embedding_bag", "aten::_embedding_bag_forward_only"
        ),
        family="embedding",
        signature="input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False,"
        " mode='mean', sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None",
        orders={
            torch.embedding_bag: "weight, input, offsets, scale_grad_by_freq=False, mode=0, sparse=False,"
            " per_sample_weights=None, include_last_offset=False, padding_idx=None"
        },
        aliases={"indices": "input"},
        weight="weight",
        weight_axes=(1, 0),
        channel_axis=-1,
        channels="embedding",
    ),
    OpSpec(
        name="one_hot",
        targets=named("one_hot"),
        family="embedding",
        signature="input, num_classes=-1",
        integers=True,
    ),
)
