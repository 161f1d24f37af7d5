from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sparsebit.compat.extra_info import add_extra_info_to_onnx
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel

onnx = pytest.importorskip("onnx")


def test_every_quantized_tensor_carries_its_width(tmp_path: Path) -> None:
    config = {
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 4}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 6}},
    }
    x = torch.randn(4, 3, 8, 8)
    qmodel = QuantModel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval(), config)
    qmodel.calibrate([x], progress=False)
    path = tmp_path / "net.onnx"
    qmodel.export_onnx(x, path)
    with pytest.raises(SparsebitError, match=r"have no bit widths.*\n.*\n.*extra_info=True"):
        add_extra_info_to_onnx(path)
    qmodel.export_onnx(x, path, extra_info=True)
    extra = add_extra_info_to_onnx(path)
    assert extra == tmp_path / "net_extra.onnx"
    nodes = [n for n in onnx.load(extra).graph.node if n.op_type in {"QuantizeLinear", "DequantizeLinear"}]
    bits = {a.i for node in nodes for a in node.attribute if a.name == "bits"}
    assert bits == {4, 6}


def test_a_missing_file_says_what_to_call_first(tmp_path: Path) -> None:
    with pytest.raises(SparsebitError, match=r"there is no such file.*\n.*\n.*export_onnx"):
        add_extra_info_to_onnx(tmp_path / "none.onnx")
