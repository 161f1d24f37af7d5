"""What recovery steps added to a graph is made again from the names in a state."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms.edits import restore_edits
from tests.quantization.nets import config


def test_biases_and_limits_come_back() -> None:
    net, x = (
        nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.ReLU6(), nn.Conv2d(4, 2, 1)).eval(),
        torch.randn(2, 3, 4, 4),
    )
    first = QuantModel(net, config(SCHEDULE__RECOVERY=["equalization", "bias_correction"]), x)
    first.calibrate([x], progress=False)
    again = QuantModel(net, config(), x)
    assert restore_edits(again.model, first.model.state_dict()) == 2
    assert set(again.model.state_dict()) == set(first.model.state_dict())
    again.model.load_state_dict(first.model.state_dict())
    for qmodel in (first, again):
        qmodel.set_quant(w_quant=False, a_quant=False)
    assert torch.equal(again(x), first(x))
    assert restore_edits(again.model, {}) == 0
