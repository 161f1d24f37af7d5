"""Bias correction (Nagel et al., arXiv 1906.04721, section 4.2), over tensors alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clipped_normal_mean(
    mean: Tensor, std: Tensor, low: float = 0.0, high: float | Tensor = math.inf
) -> Tensor:
    """The mean of a normal variable that is clipped to [low, high] (eq. 38 of its appendix).

    Example:
        >>> clipped_normal_mean(torch.tensor([0.0, 5.0]), torch.tensor([1.0, 0.1]))
        tensor([0.3989, 5.0000])
    """
    std = std.clamp(min=1e-12)
    high = torch.as_tensor(high).to(mean)
    a, b = (low - mean) / std, (high - mean) / std
    below, above = normal_cdf(a), normal_cdf(-b)
    inside = mean * (1 - below - above) + std * (normal_pdf(a) - normal_pdf(b))
    upper = torch.where(high.isfinite(), above * high, torch.zeros_like(above))
    return inside + below * low + upper


def normal_pdf(x: Tensor) -> Tensor:
    """Density of the standard normal."""
    return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


def normal_cdf(x: Tensor) -> Tensor:
    """Probability that a standard normal is at most x."""
    probability: Tensor = torch.special.ndtr(x)
    return probability


def shift_of(weight_error: Tensor, input_mean: Tensor, groups: int = 1) -> Tensor:
    """What an error of the weight [O, I / groups, ...] adds to the mean of each output, given the inputs' means."""
    per_input = weight_error.flatten(2).sum(2) if weight_error.dim() > 2 else weight_error
    rows = input_mean.reshape(groups, -1).repeat_interleave(len(weight_error) // groups, dim=0)
    return (per_input * rows).sum(1)
