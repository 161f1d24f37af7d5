"""Lookups in a weight of [vocabulary, features]: the features are its output channels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.graph.ops.spellings import family


def embedding_with_weight(module: Any, weight: Tensor, x: Tensor) -> Tensor:
    """An embedding module with another table; ``max_norm`` would modify it and is omitted."""
    return F.embedding(
        x, weight, module.padding_idx, None, module.norm_type, module.scale_grad_by_freq, module.sparse
    )


_lookup = family(
    "embedding",
    aliases={"indices": "input"},
    weight="weight",
    weight_axes=(1, 0),
    channel_axis=-1,
    channels="embedding",
)

OPS = (
    _lookup(
        "embedding",
        "input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False",
        nn.Embedding,
        orders={torch.embedding: "weight, input, padding_idx=-1, scale_grad_by_freq=False, sparse=False"},
        with_weight=embedding_with_weight,
    ),
    _lookup(
        "embedding_bag",
        "input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False,"
        " mode='mean', sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None",
        *(nn.EmbeddingBag, "aten::_embedding_bag", "aten::_embedding_bag_forward_only"),
        orders={
            torch.embedding_bag: "weight, input, offsets, scale_grad_by_freq=False, mode=0, sparse=False,"
            " per_sample_weights=None, include_last_offset=False, padding_idx=None"
        },
    ),
    family("embedding")("one_hot", "input, num_classes=-1", integers=True),
)
