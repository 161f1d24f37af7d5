"""A quantizer of another kind with the same grid."""

from __future__ import annotations

import torch

from sparsebit.quantization.modules.exchange import exchange_quantizer, is_plain
from sparsebit.quantization.quantizers import AdaRound
from tests.quantization.nets import config, images, quantized


def test_the_new_quantizer_is_wherever_the_old_one_was_and_computes_the_same() -> None:
    qmodel = quantized()
    before, old = qmodel(images()), qmodel.quantizers["fc.weight"]
    new = exchange_quantizer(qmodel.model, old, AdaRound)
    assert qmodel.quantizers["fc.weight"] is new and qmodel.model.fc.weight_quantizer is new
    assert new.spec.quantizer == "adaround" and new.is_enable
    assert torch.equal(qmodel(images()), before)


def test_plain_is_what_rounds_to_the_nearest_and_nothing_else() -> None:
    assert is_plain(quantized().quantizers["fc.weight"])
    for kind in ("lsq", "dorefa", "adaround"):
        qmodel = quantized(None, config(W__QUANTIZER__TYPE=kind)) if kind != "adaround" else quantized()
        quantizer = qmodel.quantizers["fc.weight"]
        if kind == "adaround":
            quantizer = exchange_quantizer(qmodel.model, quantizer, AdaRound)
        assert not is_plain(quantizer), kind
