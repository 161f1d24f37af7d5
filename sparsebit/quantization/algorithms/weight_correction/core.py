"""Weights that kept their norm through rounding (Banner et al., arXiv 1810.05723, section 4.2), over tensors alone."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_ratio(exact: Tensor, rounded: Tensor) -> Tensor:
    """norm(w - mean) / norm(w_q - mean) for each row of [C, N]; 1 where rounding left nothing to scale.

    Example:
        >>> norm_ratio(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, -0.5]]))
        tensor([2.])
    """
    spread = [(rows - rows.mean(1, keepdim=True)).norm(dim=1) for rows in (exact, rounded)]
    return torch.where(spread[1] > 0, spread[0] / spread[1].clamp(min=1e-12), torch.ones_like(spread[0]))
