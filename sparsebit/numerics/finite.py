"""Whether numbers are finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def is_finite(tensor: Tensor, *, or_masked: bool = False) -> bool:
    """Whether all numbers of a tensor are finite, without a second tensor of its size. Integers and meta tensors are.

    With ``or_masked``, minus infinity counts as finite, because masks contain it.

    Example:
        >>> is_finite(torch.tensor([1.0, torch.inf])), is_finite(torch.tensor([1, 2]))
        (False, True)
    """
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return True
    lowest, highest = (tensor.float() if tensor.element_size() == 1 else tensor).detach().aminmax()
    return bool(highest < torch.inf) and (or_masked or bool(lowest > -torch.inf))  # NaN is neither


def all_finite(tensors: Iterable[Tensor]) -> Tensor:
    """The same for several small floating-point tensors together: one boolean on the device of the first.

    They are flattened into one copy, so many cost little more than one.

    Example:
        >>> all_finite([torch.ones(2), torch.tensor(torch.nan)]), all_finite([])
        (tensor(False), tensor(True))
    """
    flat = [tensor.detach().reshape(-1) for tensor in tensors]
    if not flat:
        return torch.ones((), dtype=torch.bool)
    values = torch.cat([tensor.to(flat[0].device) for tensor in flat])
    # As ``isfinite``, with half its operators, because it runs for every batch.
    return (values - values == 0).all()
