"""What the tests of trained quantizers share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sparsebit.config import Side, TensorSpec
from sparsebit.numerics.layout import Layout
from sparsebit.quantization import QUANTIZERS, Quantizer


def learning(kind: str, side: Side, x: Tensor, rows: Layout | None = None, **settings: Any) -> Quantizer:
    """A quantizer calibrated on a tensor and switched on."""
    return calibrated(QUANTIZERS[kind]("it", side, TensorSpec(quantizer=kind, **settings), rows), x)


def calibrated(quantizer: Quantizer, x: Tensor) -> Quantizer:
    """The same quantizer, calibrated on a tensor and switched on."""
    if quantizer.side == "W":
        quantizer.observe_whole(x)
    else:
        quantizer.observe(x)
        quantizer.finish()
    quantizer.enable_quant()
    return quantizer


def slope(quantizer: Quantizer, x: Tensor, parameter: Tensor, weights: Tensor, by: float = 1e-4) -> Tensor:
    """The finite difference of ``(quantizer(x) * weights).sum()`` by a parameter of one value."""
    values = []
    for step in (by, -by):
        parameter.data += step
        values.append((quantizer(x).detach().double() * weights).sum())
        parameter.data -= step
    difference: Tensor = (values[0] - values[1]) / (2 * by)
    return difference
