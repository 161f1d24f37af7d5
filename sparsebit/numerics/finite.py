"""Whether numbers are numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite, without a second tensor of its size. Integers and meta tensors are.

    Example:
        >>> is_finite(torch.tensor([1.0, torch.inf])), is_finite(torch.tensor([1, 2]))
        (False, True)
    """
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return True
    ends = torch.stack((tensor.float() if tensor.element_size() == 1 else tensor).detach().aminmax())
    return bool(torch.isfinite(ends).all())
