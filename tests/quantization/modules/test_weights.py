"""The one finder of a weight's quantizer: modules and functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization.modules.weights import quantized_weights, quantizer_at, weights_read
from tests.quantization.nets import quantized


class Both(nn.Module):
    """A layer that is a module, and one that is a function with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x), self.table)


def test_weights_of_modules_and_of_functions_are_found() -> None:
    qmodel = quantized(Both().eval(), None, torch.randn(2, 4))
    found = quantized_weights(qmodel.model)
    assert set(found) == {"layer.weight", "table"}
    assert set(qmodel.weights()) == {quantizer.name for quantizer in found.values()}
    assert torch.equal(qmodel.weights()[found["table"].name], qmodel.model.table)
    for node in qmodel.model.graph.nodes:
        if quantizer_at(qmodel.model, node) is not None:
            assert not list(weights_read(qmodel.model, node)), "a quantizer reads no weight of its own"
