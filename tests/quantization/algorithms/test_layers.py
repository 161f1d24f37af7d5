"""The layers of a quantized graph as recovery steps see them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms.layers import (
    find_quantized_layers,
    per_channel,
    result_axis,
    sole_reader,
    watch,
)
from tests.quantization.nets import config, images, residual


class Tied(nn.Module):
    """Two layers with one weight, and a third of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.c(self.b(self.a(x)))
        return y


class Functional(nn.Module):
    """A function with a parameter, and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.kernel).relu()


def test_layers_that_are_shared_are_left_out() -> None:
    qmodel = QuantModel(Tied(), config(), torch.randn(2, 4))
    assert [layer.node.name for layer in find_quantized_layers(qmodel.model)] == ["c"]


def test_a_layer_gets_another_weight_and_a_bias_and_the_users_model_keeps_its_own() -> None:
    net, x = Functional().eval(), torch.randn(2, 4)
    before = net.kernel.detach().clone()
    qmodel = QuantModel(net, config(), x)
    (layer,) = find_quantized_layers(qmodel.model)
    assert layer.bias is None and not layer.transposed and not layer.depthwise and layer.call.groups == 1
    changed = layer.set(weight=2 * layer.weight, bias=torch.ones(3))
    assert changed.bias is not None and changed.call.bias_name == "kernel_bias"
    torch.testing.assert_close(qmodel(x), F.linear(x, 2 * before, torch.ones(3)).relu())
    assert torch.equal(net.kernel, before)


def test_what_flows_past_is_watched_by_channel() -> None:
    qmodel = QuantModel(residual(), config(), images())
    layer = next(layer for layer in find_quantized_layers(qmodel.model) if layer.node.name == "conv1")
    seen: list[Tensor] = []
    watch(qmodel.model, [((images(),), {})], {"conv1": seen.append}, shown=False)
    axis = result_axis(layer, seen[0].dim())
    assert axis == 1 and len(per_channel(seen[0], axis, lambda rows: rows.amax(1))) == len(layer.weight)
    assert sole_reader(qmodel.model, layer.node) is not None
