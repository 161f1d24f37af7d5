"""Images with a fourth channel: where it is added, and that it changes no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.export import check, export_graph
from tests.export.nets import config, op_types, quantized, run_file

SETTINGS: dict[str, Any] = {
    "preset": "int8_onnxruntime",
    "symmetric": config(a={"scheme": "per-tensor-symmetric"}),
    "per tensor": config(w={"scheme": "per-tensor-symmetric"}),
    "five bits": config(a={"bits": 5}),
}


def net(channels: int, kernel: int, groups: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 36, kernel, 2, 1, groups=groups), nn.ReLU(), nn.Conv2d(36, 4, 1))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
def test_the_channel_changes_no_number(setting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 16, 16)
    qmodel = quantized(net(3, 3), x, setting)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "four.onnx")
    assert done.rewrites["fourth_channel"] == 1 and op_types(done.path).count("Pad") == 2
    report = check(qmodel.model, done, [((x,), {}), ((3 * x,), {})])
    assert report.ok and not report.fallbacks and not report.float_ops, report
    assert {tensor.name for tensor in report.tensors} >= {"0.weight", "input_1"}
    monkeypatch.setattr("sparsebit.export.forms.target_form.INTO_FOURS", ())
    three = export_graph(qmodel.model, (x,), path=tmp_path / "three.onnx")
    assert (run_file(done.path, 3 * x)[0] == run_file(three.path, 3 * x)[0]).all()


@pytest.mark.parametrize(("channels", "kernel", "groups"), [(4, 3, 1), (1, 3, 1), (3, 9, 1), (3, 3, 3)])
def test_other_convolutions_stay(channels: int, kernel: int, groups: int, tmp_path: Path) -> None:
    x = torch.randn(2, channels, 16, 16)
    qmodel = quantized(net(channels, kernel, groups), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert done.rewrites["fourth_channel"] == 0 and "Pad" not in op_types(done.path)
