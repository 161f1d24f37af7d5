"""What the weights of a model weigh, in float and at the widths they were given."""

from __future__ import annotations

from torch import nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.quantizers import Quantizer


def float_bytes(qmodel: QuantModel) -> int:
    """All parameters of the graph as they are now, batch norm folded."""
    return sum(parameter.numel() * parameter.element_size() for parameter in _own(qmodel))


def quantized_bytes(qmodel: QuantModel) -> int:
    """The same with each quantized weight at its width, and a float32 for each of its scales."""
    saved = 0.0
    for name, quantizer in qmodel.quantizers.items():
        if quantizer.side == "W" and not quantizer.fake_fused:
            weight = qmodel.weights()[name]
            saved += (
                weight.numel() * (weight.element_size() - quantizer.bit / 8) - 4 * quantizer.scale.numel()
            )
    return round(float_bytes(qmodel) - saved)


def _own(qmodel: QuantModel) -> list[nn.Parameter]:
    learned = {id(p) for m in qmodel.modules() if isinstance(m, Quantizer) for p in m.parameters()}
    return [parameter for parameter in qmodel.model.parameters() if id(parameter) not in learned]
