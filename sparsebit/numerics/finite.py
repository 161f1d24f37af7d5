"""Whether numbers are numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def is_finite(tensor: Tensor, *, or_masked: bool = False) -> bool:
    """Whether all numbers of a tensor are finite, without a second tensor of its size. Integers and meta tensors are.

    With ``or_masked`` minus infinity, which masks are written with, counts as finite.

    Example:
        >>> is_finite(torch.tensor([1.0, torch.inf])), is_finite(torch.tensor([1, 2]))
        (False, True)
    """
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return True
    lowest, highest = (tensor.float() if tensor.element_size() == 1 else tensor).detach().aminmax()
    return bool(highest < torch.inf) and (or_masked or bool(lowest > -torch.inf))  # NaN is neither
