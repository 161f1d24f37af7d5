"""Operators by their flat names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.quantization.nets import config, images, quantized, residual


def test_modules_and_functions_by_flat_name() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stage = nn.Sequential(residual())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.stage(x)
            return y

    qmodel = quantized(Outer().eval(), config(A__QADD__ENABLE_QUANT=True))
    gm = qmodel.model
    assert gm.stage_0_conv1 is gm.get_submodule("stage.0.conv1")
    assert gm.stage_0_conv1.input_quantizer is qmodel.quantizers["x"]
    assert gm.stage_0_conv1.weight_quantizer is qmodel.quantizers["stage.0.conv1.weight"]
    add = gm.add
    assert [q.name for q in add.input_quantizers] == ["stage_0_conv2", "relu"]
    assert add.weight_quantizer is None and add.input_quantizer is add.input_quantizers[0]
    add.set_quant(a_quant=False)
    assert not qmodel.quantizers["relu"].is_enable
    add.set_quant(a_quant=True)
    assert qmodel.quantizers["relu"].is_enable
    gm.stage_0_conv1.set_quant(w_quant=False, a_quant=True)
    assert not gm.stage_0_conv1.weight_quantizer.is_enable and gm.stage_0_conv1.input_quantizer.is_enable


def test_a_name_that_is_nothing_is_an_attribute_error() -> None:
    gm = quantized().model
    for name in ("conv9", "x", "output"):
        with pytest.raises(AttributeError):
            getattr(gm, name)
    assert not hasattr(gm, "conv9") and hasattr(gm, "relu")


def test_a_quantizer_behind_a_reshape_is_seen() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x) @ torch.exp(x * 2).transpose(-2, -1)

    gm = quantized(Attention().eval(), None, torch.randn(1, 3, 4)).model
    assert [q.name for q in gm.matmul.input_quantizers] == ["exp", "exp_1"]


def test_names_survive_copies() -> None:
    qmodel = quantized()
    for gm in (copy.copy(qmodel.model), copy.deepcopy(qmodel.model)):
        assert gm.relu.node.name == "relu" and torch.equal(gm(images()), qmodel(images()))
