"""Scale each channel of the rounded weights back to the norm it had."""

from __future__ import annotations

from dataclasses import dataclass

from sparsebit.numerics.layout import to_rows
from sparsebit.progress import progress
from sparsebit.quantization.algorithms.base import Algorithm, Job, register_algorithm
from sparsebit.quantization.algorithms.layers import find_layers
from sparsebit.quantization.algorithms.weight_correction.core import norm_ratio
from sparsebit.quantization.modules.exchange import is_plain


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class WeightCorrection(Algorithm):
    """Codes stay what they are; the scale of each channel is corrected, so it costs nothing at run time.

    For weights with one scale per channel. What it does to the mean of a channel is for ``bias_correction``.
    """

    NAME = "weight_correction"

    def apply(self, job: Job) -> None:
        """Correct every layer whose weight is quantized per channel."""
        corrected = 0
        for layer in progress(list(find_layers(job.gm)), "correcting weights", shown=job.shown):
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
