"""Quantizers on and off, and put back."""

from __future__ import annotations

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.switches import require_calibrated, switch, switched
from tests.quantization.nets import config, images, quantized, residual


def test_a_block_switches_and_puts_back() -> None:
    qmodel = quantized()
    qmodel.set_quant(w_quant=True, a_quant=False)
    quantizers = list(qmodel.quantizers.values())
    before = [quantizer.use_quant for quantizer in quantizers]
    with pytest.raises(ValueError, match="inside"), switched(quantizers, lambda q: q.side == "A"):
        assert [q.use_quant for q in quantizers] == [q.side == "A" for q in quantizers]
        raise ValueError("inside")
    assert [quantizer.use_quant for quantizer in quantizers] == before
    with switched(quantizers):
        qmodel.set_quant(w_quant=False, a_quant=True)
    assert [quantizer.use_quant for quantizer in quantizers] == before


def test_without_a_scale_nothing_is_switched_on() -> None:
    quantizers = QuantModel(residual(), config(), images()).quantizers.values()
    with switched(quantizers, True):
        assert not any(quantizer.use_quant for quantizer in quantizers)
    with pytest.raises(SparsebitError, match=r"the model is not calibrated: \d+ quantizers have no scale"):
        require_calibrated(quantizers)


def test_fused_ones_stay_off() -> None:
    quantizer = quantized(on=False).quantizers["x"]
    quantizer.set_fake_fused()
    switch(quantizer, True), switch(None, True)
    assert not quantizer.is_enable
