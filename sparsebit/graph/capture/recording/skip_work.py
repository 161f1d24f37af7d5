"""Results of the right shape without arithmetic, for a recording that is only compared with another one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from sparsebit.graph.capture.leaves import is_torch_leaf
from sparsebit.graph.ops.lookup import find_class, find_function


def skip_work(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Zeros in the result shape of a costly layer or function; None for anything else, or if it may raise an error.

    Example:
        >>> skip_work(nn.Linear(4, 2), (torch.ones(3, 4),), {}).shape
        torch.Size([3, 2])
    """
    x = args[0] if args else None
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_meta:
        return None
    if torch.is_autocast_enabled(x.device.type):  # gives another dtype
        return None
    if isinstance(target, nn.Linear | _ConvNd):
        return _layer(target, x) if len(args) == 1 and not kwargs and is_torch_leaf(target) else None
    found = find_class(type(target)) if isinstance(target, nn.Module) else find_function(target)
    if found is None or kwargs:
        return None
    if found.spec.name == "matmul":
        return _product(x, args[1]) if len(args) == 2 else None
    same_shape = found.spec.name == "gelu" or found.spec.channels == "softmax"
    return torch.zeros_like(x) if same_shape and len(args) <= 2 else None


def _layer(layer: nn.Linear | _ConvNd, x: Tensor) -> Tensor | None:
    if not x.dim() or x.dtype != layer.weight.dtype:
        return None
    if isinstance(layer, nn.Linear):
        return x.new_zeros(*x.shape[:-1], layer.out_features) if x.size(-1) == layer.in_features else None
    if not x.is_contiguous() or not layer.weight.is_contiguous():
        return None  # the memory format of the result is not known without the work
    state = {name: tensor.to("meta") for name, tensor in layer.named_parameters()}
    try:
        result: Tensor = torch.func.functional_call(layer, state, (x.to("meta"),))
    except RuntimeError:
        return None  # the layer itself raises the error that the user knows
    return torch.zeros_like(result, device=x.device)


def _product(left: Tensor, right: Any) -> Tensor | None:
    if not isinstance(right, Tensor) or left.dtype != right.dtype or min(left.dim(), right.dim()) < 2:
        return None
    if left.shape[:-2] != right.shape[:-2] or left.size(-1) != right.size(-2):
        return None
    return left.new_zeros(*left.shape[:-1], right.size(-1))
