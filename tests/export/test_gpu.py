"""Models on a GPU are exported from there, and stay there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel

pytestmark = pytest.mark.gpu
RULES = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip


def test_a_quantized_model(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 16, 16)
    qmodel = QuantModel(net(), "int8_onnxruntime", (x,)).to("cuda")
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    done = qmodel.export_onnx(x.cuda(), tmp_path / "net.onnx")
    assert done.report is not None and done.report.ok
    assert {p.device.type for p in qmodel.parameters()} == {"cuda"}
    assert qmodel(x.cuda()).is_cuda


def test_a_pruned_model(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 16, 16)
    smodel = SparseModel(net(), RULES, (x,)).to("cuda")
    smodel.calc_params()
    done = smodel.export_onnx(x.cuda(), tmp_path / "net.onnx")
    assert done.report is not None and done.report.ok
    assert {p.device.type for p in smodel.parameters()} == {"cuda"}
