"""TensorRT's rules: a file made for it passes, a file that breaks one is found by that rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from sparsebit.export import check_tensorrt, export_graph
from tests.export.nets import Residual, quantized


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x, "int8_tensorrt")
    return export_graph(
        qmodel.model, (x,), path=tmp_path_factory.mktemp("trt") / "net.onnx", target="tensorrt"
    ).path


def test_a_file_for_tensorrt_breaks_no_rule(made: Path) -> None:
    assert [finding for finding in check_tensorrt(made) if finding.level == "error"] == []
    types = {t.data_type for t in onnx.load(str(made)).graph.initializer}
    assert onnx.TensorProto.UINT8 not in types and onnx.TensorProto.INT32 not in types


def replaced(proto: onnx.ModelProto, ending: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = next(t for t in proto.graph.initializer if t.name.endswith(ending))
    tensor.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(tensor)), tensor.name))


def renamed(proto: onnx.ModelProto) -> None:
    next(n for n in proto.graph.node if n.op_type == "Conv").op_type = "ConvInteger"


def other_axis(proto: onnx.ModelProto) -> None:
    node = next(n for n in proto.graph.node if n.name == "a.weight/DequantizeLinear")
    next(a for a in node.attribute if a.name == "axis").i = 1


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("zero point 0", lambda p: replaced(p, "x.zero_point", lambda v: v + 3)),
        ("signed values", lambda p: replaced(p, "x.zero_point", lambda v: v.astype(np.uint8))),
        ("positive scale", lambda p: replaced(p, "x.scale", lambda v: -v)),
        ("activations per tensor", lambda p: replaced(p, "x.scale", lambda v: np.full(3, v))),
        ("weights per output channel", other_axis),
        ("operators", renamed),
        ("opset", lambda p: setattr(p.opset_import[0], "version", 30)),
        ("float biases", lambda p: replaced(p, "stem.weight.codes", lambda v: v.astype(np.int32))),
    ],
)
def test_each_rule_finds_what_breaks_it(
    rule: str, change: Callable[[onnx.ModelProto], None], made: Path, tmp_path: Path
) -> None:
    proto = onnx.load(str(made))
    change(proto)
    onnx.save(proto, str(tmp_path / "broken.onnx"))
    found = {finding.rule for finding in check_tensorrt(tmp_path / "broken.onnx") if finding.level == "error"}
    assert rule in found


def test_a_file_for_onnxruntime_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    done = export_graph(quantized(Residual(), x).model, (x,), path=tmp_path / "net.onnx")
    rules = {finding.rule for finding in check_tensorrt(done.path)}
    assert {"zero point 0", "signed values", "float biases", "residual add"} <= rules
