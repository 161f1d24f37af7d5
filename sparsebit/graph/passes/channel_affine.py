"""Batch norm as one scale and shift per channel, and the weights with the batch norm folded in. Pure arithmetic.

In evaluation mode batch norm is ``y = scale * x + shift``, with ``scale = gamma / sqrt(var + eps)`` and
``shift = beta - mean * scale``. After a layer with weight W and bias b it gives ``W' = scale * W`` by output
channel and ``b' = scale * b + shift``; before one, ``W' = W * scale`` by input channel and ``b' = b + W ·
shift``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Affine(NamedTuple):
    """``y = scale * x + shift`` for each channel."""

    scale: Tensor  # [C], float64
    shift: Tensor  # [C], float64


def affine_of_statistics(
    mean: Tensor, var: Tensor, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> Affine:
    """Batch norm over fixed statistics, all [C].

    Example:
        >>> affine_of_statistics(torch.tensor([3.0]), torch.tensor([4.0]), None, None, 0.0)
        Affine(scale=tensor([0.5000], dtype=torch.float64), shift=tensor([-1.5000], dtype=torch.float64))
    """
    scale = (widen(var) + eps).rsqrt()
    scale = scale if gamma is None else scale * widen(gamma)
    shift = -widen(mean) * scale
    return Affine(scale, shift if beta is None else shift + widen(beta))


def scale_outputs(
    weight: Tensor, bias: Tensor | None, norm: Affine, *, groups: int, transposed: bool
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of ``norm(layer(x))`` in float64.

    ``weight`` is [out, in / groups, ...], for a transposed layer [in, out / groups, ...]; ``bias`` is [out].
    """
    wide = widen(weight)
    if transposed:
        by_group = wide.unflatten(0, (groups, -1))  # [groups, in / groups, out / groups, ...]
        factor = norm.scale.view(groups, 1, -1, *[1] * (weight.dim() - 2))
        wide = (by_group * factor).flatten(0, 1)
    else:
        wide = wide * norm.scale.view(-1, *[1] * (weight.dim() - 1))
    return wide, norm.shift if bias is None else widen(bias) * norm.scale + norm.shift


def scale_inputs(
    weight: Tensor, bias: Tensor | None, norm: Affine, *, groups: int, transposed: bool
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of ``layer(norm(x))`` in float64; shapes as above.

    Exact only if every output position applies the complete kernel to shifted values, or the shift is zero.
    """
    wide = widen(weight)
    shifted = bool(norm.shift.any())
    bias = None if bias is None else widen(bias)
    if transposed:
        assert not shifted
        return wide * norm.scale.view(-1, *[1] * (weight.dim() - 1)), bias
    by_group = wide.unflatten(0, (groups, -1))  # [groups, out / groups, in / groups, ...]
    shape = (groups, 1, -1, *[1] * (weight.dim() - 2))
    scaled = (by_group * norm.scale.view(shape)).flatten(0, 1)
    if not shifted:
        return scaled, bias
    moved = (by_group * norm.shift.view(shape)).flatten(0, 1).flatten(1).sum(1)
    return scaled, moved if bias is None else bias + moved


def widen(tensor: Tensor) -> Tensor:
    """The tensor in the precision used for folding: float64 if the device supports it."""
    return tensor.detach().to(torch.float32 if tensor.device.type == "mps" else torch.float64)
