"""DoReFa: tanh first, then the grid (Zhou et al., arXiv 1606.06160)."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.registration import register_quantizer


@register_quantizer
class DoReFa(Quantizer):
    """Quantizes tanh(x) / max(abs(tanh(x))), so the result lies in [-1, 1] for any scale of x.

    The layer gets weights of a different magnitude from the float model's. It is meant for training, where batch norm
    compensates for that, and not for calibration only.
    """

    TYPE = "dorefa"

    def prepare(self, x: Tensor) -> Tensor:
        """tanh, divided by its largest magnitude, which is treated as a constant."""
        squashed = torch.tanh(x)
        return squashed / squashed.detach().abs().amax().clamp(min=torch.finfo(x.dtype).tiny)
