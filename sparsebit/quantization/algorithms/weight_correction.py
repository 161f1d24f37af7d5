"""Restore the norm of each channel of the rounded weights (Banner et al., arXiv 1810.05723, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsebit.numerics.layout import to_rows
from sparsebit.progress import progress
from sparsebit.quantization.algorithms.base import Algorithm, Job, register_algorithm
from sparsebit.quantization.algorithms.layers import find_quantized_layers
from sparsebit.quantization.modules.exchange import is_plain


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class WeightCorrection(Algorithm):
    """Codes are unchanged; only the scale of each channel is corrected, so it costs nothing at run time.

    For weights with one scale per channel. ``bias_correction`` corrects the resulting change of the mean.
    """

    NAME = "weight_correction"

    def apply(self, job: Job) -> None:
        """Correct every layer whose weight is quantized per channel."""
        corrected = 0
        for layer in progress(list(find_quantized_layers(job.gm)), "correcting weights", shown=job.shown):
            quantizer = layer.quantizer
            if quantizer.layout.kind != "channel" or quantizer.layout.groups > 1 or not is_plain(quantizer):
                continue
            rounded = quantizer.snap(layer.weight)
            ratio = norm_ratio(*(to_rows(w.double(), quantizer.layout) for w in (layer.weight, rounded)))
            shape = [-1 if dim in quantizer.layout.axes else 1 for dim in range(rounded.dim())]
            layer.set(weight=rounded.double() * ratio.reshape(shape))
            quantizer.set_grid(quantizer.scale * ratio.to(quantizer.scale), quantizer.zero_point)
            corrected += 1
        job.notes.append(f"corrected the norm of {corrected} weights")


def norm_ratio(exact: Tensor, rounded: Tensor) -> Tensor:
    """norm(w - mean) / norm(w_q - mean) for each row of [C, N]; 1 if all rounded values are equal.

    Example:
        >>> norm_ratio(torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, -0.5]]))
        tensor([2.])
    """
    spread = [(rows - rows.mean(1, keepdim=True)).norm(dim=1) for rows in (exact, rounded)]
    return torch.where(spread[1] > 0, spread[0] / spread[1].clamp(min=1e-12), torch.ones_like(spread[0]))
