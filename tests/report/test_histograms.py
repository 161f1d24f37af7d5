"""Numbers on grids: all of them counted, clipping where it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.report.histograms import BINS, histograms
from tests.report.samples import batches, quantized


@pytest.mark.parametrize("config", ["w4a8", "int8_onnxruntime"])
def test_every_quantized_tensor_has_one(config: str) -> None:
    qmodel = quantized(config)
    found = histograms(qmodel, batches())
    assert set(found) == {name for name, q in qmodel.quantizers.items() if not q.fake_fused}
    for name, shown in found.items():
        assert len(shown.counts) == BINS and shown.lo < shown.qmin <= shown.qmax < shown.hi
        if qmodel.quantizers[name].side == "W":
            assert sum(shown.counts) == qmodel.weights()[name].numel()
        else:
            assert sum(shown.counts) > 0


@pytest.mark.parametrize("scheme", ["per-token-symmetric", "per-tensor-symmetric"])
@pytest.mark.parametrize("weights", ["per-group-symmetric", "per-tensor-affine"])
def test_every_granularity_counts(scheme: str, weights: str) -> None:
    config = {
        "W": {"QSCHEME": weights, "GROUP_SIZE": 4, "QUANTIZER": {"BIT": 4}},
        "A": {"QSCHEME": scheme, "QUANTIZER": {"BIT": 8}},
    }
    x = torch.randn(6, 8)
    qmodel = QuantModel(nn.Sequential(nn.Linear(8, 4)).eval(), parse_qconfig(config), (x,))
    qmodel.calibrate([x], progress=False)
    found = histograms(qmodel, [x])
    assert [sum(shown.counts) for shown in found.values()] in ([32, 48], [48, 32])


def test_what_is_clipped_lies_outside() -> None:
    x = torch.randn(1000, 2)
    config = {
        "W": {"QSCHEME": "per-tensor-symmetric", "QUANTIZER": {"BIT": 8}},
        "A": {"QSCHEME": "per-tensor-symmetric", "QUANTIZER": {"BIT": 4}},
    }
    qmodel = QuantModel(nn.Sequential(nn.Linear(2, 2)).eval(), parse_qconfig(config), (x[:2],))
    qmodel.calibrate([0.1 * x], progress=False)
    shown = next(h for h in histograms(qmodel, [x]).values() if h.qmax == 7)
    edge = int((shown.qmin - 0.5 - shown.lo) / (shown.hi - shown.lo) * BINS)
    outside = sum(shown.counts[:edge]) + sum(shown.counts[-edge:])
    assert outside > 0.5 * sum(shown.counts)
