"""Independent copies of models."""

from __future__ import annotations

import copy
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn


def copy_module(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """As ``copy.deepcopy``, also for a model that holds results of its last forward with gradients.

    ``deepcopy`` refuses such tensors: a cached activation, a buffer updated in training, the weight that the hook of
    ``torch.nn.utils.weight_norm`` computes. The copy has their numbers, without gradients.

    Example:
        >>> net = nn.Linear(2, 2)
        >>> net.last = net.weight * 2
        >>> copy_module(net).last.requires_grad
        False
    """
    memo = {} if memo is None else memo
    for module in model.modules():
        for value in pytree.tree_leaves(dict(vars(module))):
            if isinstance(value, Tensor) and not value.is_leaf:
                memo.setdefault(id(value), value.detach().clone())
    return copy.deepcopy(model, memo)
