"""What a quantized model is between its steps; switches, copies and refusals are in ``test_quant_model.py``."""

from __future__ import annotations

import torch

from sparsebit.quantization.quantized_module import QuantizedModule
from tests.quantization.nets import images, quantized


def test_weights_and_quantizers_have_the_same_names() -> None:
    qmodel = quantized()
    assert isinstance(qmodel, QuantizedModule) and qmodel.device == torch.device("cpu")
    assert set(qmodel.weights()) == {name for name, q in qmodel.quantizers.items() if q.side == "W"}
    assert qmodel.weights()["fc.weight"] is qmodel.model.fc.weight
    assert not qmodel.enable_qat and not qmodel.weights_rounded


def test_freezing_and_thawing_keep_every_number() -> None:
    qmodel = quantized()
    before = qmodel(images())
    assert set(qmodel.freeze()) == set(qmodel.weights())
    assert torch.equal(qmodel(images()), before)
    assert qmodel.thaw() and torch.equal(qmodel(images()), before)
