"""What a quantized model is between its steps; switches, copies and refusals are in ``test_quant_model.py``."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit import QuantModel, SparseModel, capture
from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.quantization.quantized_module import QuantizedModule
from tests.quantization.nets import config, images, quantized, residual


def test_weights_and_quantizers_have_the_same_names() -> None:
    qmodel = quantized()
    assert isinstance(qmodel, QuantizedModule) and qmodel.device == torch.device("cpu")
    assert set(qmodel.weights()) == {name for name, q in qmodel.quantizers.items() if q.side == "W"}
    assert qmodel.weights()["fc.weight"] is qmodel.model.fc.weight
    assert not qmodel.enable_qat and not qmodel.weights_rounded


def test_a_model_that_loads_its_scales_is_quantized() -> None:
    qmodel = quantized()
    fresh = QuantModel(residual(seed=1), config(), example_inputs=(images(),))
    fresh.load_state_dict(qmodel.state_dict())
    assert torch.equal(fresh(images()), qmodel(images()))
    inside = nn.Sequential(QuantModel(residual(seed=1), config(), example_inputs=(images(),)))
    inside.load_state_dict(nn.Sequential(qmodel).state_dict())
    assert torch.equal(inside(images()), qmodel(images()))
    off = quantized(on=False)  # switched off by the user, and stays so
    off.load_state_dict(qmodel.state_dict())
    assert not any(quantizer.is_enable for quantizer in off.quantizers.values())


@pytest.mark.parametrize("kind", [QuantModel, SparseModel])
def test_the_float_model_is_not_kept_in_memory(kind: Any) -> None:
    pruning = {"SPARSER": {"TYPE": "unstructured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    net = residual()
    made, known = kind(net, config() if kind is QuantModel else pruning, images()), weakref.ref(net)
    del net
    gc.collect()
    assert known() is None and made is not None


def test_freezing_and_thawing_keep_every_number() -> None:
    qmodel = quantized()
    qmodel.model.fc.weight.requires_grad_(False)
    trained = {name: parameter.requires_grad for name, parameter in qmodel.named_parameters()}
    before = qmodel(images())
    assert set(qmodel.freeze()) == set(qmodel.weights())
    assert torch.equal(qmodel(images()), before)
    assert qmodel.thaw() and torch.equal(qmodel(images()), before)
    assert {name: parameter.requires_grad for name, parameter in qmodel.named_parameters()} == trained


def test_a_weight_that_is_read_with_two_grids_is_found_under_both() -> None:
    class Tied(nn.Module):
        """A layer, and its own weight as the matrix of a product: scales along different axes."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).relu() @ self.layer.weight

    x = torch.randn(2, 5, 16)
    qmodel = QuantModel(Tied().eval(), "int8_onnxruntime", example_inputs=(x,))
    assert sorted(qmodel.weights()) == ["layer.weight", "layer.weight@matmul"]
    qmodel.calibrate([x], progress=False)
    assert all(quantizer.scale.numel() for quantizer in qmodel.quantizers.values())


def test_a_quantized_model_is_not_captured_or_pruned() -> None:
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    with pytest.raises(
        CaptureError, match=r"a QuantModel cannot be captured again\n  next: change the float"
    ):
        SparseModel(quantized(), config, example_inputs=(images(),))
    with pytest.raises(CaptureError, match="a QuantModel cannot be captured again"):
        capture(quantized(), images())


@pytest.mark.parametrize("wrong", ["no", None, 2, torch.ones(2)])
def test_a_switch_is_true_or_false(wrong: Any) -> None:
    qmodel = QuantModel(nn.Linear(4, 4).eval(), "int8_onnxruntime", example_inputs=torch.randn(2, 4))
    with pytest.raises(SparsebitError, match=r"set_quant\(\) takes True or False"):
        qmodel.set_quant(False, wrong)
