"""Cross-layer equalization (Nagel et al., arXiv 1906.04721, section 4.1), over tensors alone."""

from __future__ import annotations

import torch
from torch import Tensor


def equalizing_scales(first: Tensor, second: Tensor) -> Tensor:
    """s = sqrt(r1 * r2) / r2 for ranges [C] of the same channel in two layers (eq. 11).

    Dividing the first by s and multiplying the second by it makes both ranges sqrt(r1 * r2). A channel that is zero on
    either side is left alone.

    Example:
        >>> equalizing_scales(torch.tensor([4.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 5.0]))
        tensor([2., 1., 1.])
    """
    alive = (first > 0) & (second > 0)
    scales = (first / second.clamp(min=torch.finfo(second.dtype).tiny)).sqrt()
    return torch.where(alive, scales, torch.ones_like(scales))
