"""Layers with weights: found under every front-end and form, shared ones once, the classifier known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import capture
from sparsebit.sparse.layers import activation_behind, find_layers, makes_outputs, require_finite_weights
from tests.sparse.nets import images, residual


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 3, 3, 3))
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.conv2d(x, self.kernel).mean((2, 3))
        z, _ = self.lstm(self.table(tokens))
        return self.head(y), z


def test_modules_functions_recurrent_and_tied() -> None:
    gm = capture(Functional().eval(), (torch.randn(2, 3, 8, 8), torch.zeros(2, 3, dtype=torch.int64)))
    found = {layer.tensor: layer for layer in find_layers(gm)}
    assert set(found) == {"kernel", "lstm.weight_ih_l0", "lstm.weight_hh_l0", "head.weight"}
    assert found["kernel"].names == ("kernel", "conv2d")
    assert found["kernel"].axes == (0, 1)
    assert found["head.weight"].call.spec.name == "linear"


def test_both_front_ends_find_the_same() -> None:
    net = residual()
    recorded = [layer.tensor for layer in find_layers(capture(net, images()))]
    assert recorded == [layer.tensor for layer in find_layers(capture(net))]


def test_the_classifier_is_what_makes_the_outputs() -> None:
    gm = capture(residual(), images())
    assert makes_outputs(gm) == {"fc"}


def test_behind_the_norm_and_the_activation() -> None:
    gm = capture(residual(), images())
    layers = {layer.name: layer for layer in find_layers(gm)}
    assert activation_behind(gm, layers["conv1"].node).name == "relu_1"
    assert activation_behind(gm, layers["conv2"].node).name == "bn2"  # an addition comes next


def test_weights_that_are_not_finite_are_named() -> None:
    gm = capture(residual(), images())
    require_finite_weights(gm)
    gm.get_parameter("fc.bias").data[0] = float("nan")
    with pytest.raises(SparsebitError, match=r"not finite[\s\S]*fc.bias[\s\S]*1 of"):
        require_finite_weights(gm)
