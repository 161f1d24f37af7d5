"""What batch norms know about the layers before them."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.capture.frontend import capture
from sparsebit.quantization.batch_norm.statistics import has_batch_norm, statistics_of
from tests.quantization.nets import images, quantized, residual


def test_shift_and_gain_are_the_mean_and_deviation_of_the_layer_before() -> None:
    net = residual()
    with torch.no_grad():
        net.bn1.weight[0] = -2.0
    found = statistics_of(capture(net, (images(),)))
    assert set(found) >= {"conv1", "conv2"}
    mean, std = found["conv1"]
    assert torch.equal(mean, net.bn1.bias) and torch.equal(std, net.bn1.weight.abs())


def test_a_folded_model_has_none() -> None:
    assert has_batch_norm(capture(residual(), (images(),)))
    assert not has_batch_norm(quantized().model)
    alone = nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)).eval()  # no layer in front
    assert statistics_of(capture(alone, (images(),))) == {}
