"""SmoothQuant (Xiao et al., arXiv 2211.10438, eq. 4), over tensors alone."""

from __future__ import annotations

import torch
from torch import Tensor


def smoothing_scales(activation: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """s = max(abs(X_j)) ** alpha / max(abs(W_j)) ** (1 - alpha) for each input channel; 1 where either is zero.

    Example:
        >>> smoothing_scales(torch.tensor([16.0, 0.0]), torch.tensor([1.0, 1.0]), 0.5)
        tensor([4., 1.])
    """
    alive = (activation > 0) & (weight > 0)
    scales = activation.pow(alpha) / weight.clamp(min=torch.finfo(weight.dtype).tiny).pow(1 - alpha)
    return torch.where(alive, scales.clamp(min=1e-5), torch.ones_like(scales))
