"""The plain quantizer: the measured range determines the grid."""

from __future__ import annotations

from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.registration import register_quantizer


@register_quantizer
class Uniform(Quantizer):
    """Snaps to an evenly spaced grid over the range its observer found.

    Example:
        >>> import torch
        >>> from sparsebit.config import TensorSpec
        >>> quantizer = Uniform("x", "A", TensorSpec(bits=2, symmetric=False))
        >>> quantizer.observe(torch.tensor([0.0, 3.0])), quantizer.finish(), quantizer.enable_quant()
        (None, None, None)
        >>> quantizer(torch.tensor([0.4, 1.6, 9.0]))
        tensor([0., 2., 3.])
    """

    TYPE = "uniform"
