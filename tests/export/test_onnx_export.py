from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from sparsebit import capture
from sparsebit.export import ExportError, export_onnx
from sparsebit.export import export_onnx as verb
from tests.export.nets import Residual, Tokens, quantized, run_file


def test_the_verb_writes_and_checks(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    done = export_onnx(
        qmodel,
        x,
        tmp_path / "net",
        ["image"],
        ["logits"],
        {"image": {0: "n"}, "logits": {0: "n"}},
        opset_version=17,
        extra_info=True,
        calls=[((torch.randn(3, 3, 8, 8),), {})],
    )
    assert done.path == tmp_path / "net.onnx" and done.report is not None and done.report.ok
    assert onnx.load(str(done.path)).opset_import[0].version == 17
    assert run_file(done.path, torch.randn(5, 3, 8, 8))[0].shape == (5, 4)
    assert "planned operators on integers" in str(done)


def test_inputs_by_name(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    done = export_onnx(
        capture(Tokens().eval(), (), {"x": x}), {"x": x}, tmp_path / "net.onnx", fixed_sizes=True
    )
    assert done.exported.axes == {} and done.report is not None and done.report.ok


def test_a_file_that_does_not_agree_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    module = sys.modules[verb.__module__]

    def disagree(*_: Any) -> None:
        raise ExportError("the file does not compute what the model computes")

    monkeypatch.setattr(module, "_check", disagree)
    with pytest.raises(ExportError):
        export_onnx(qmodel, x, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []
    assert export_onnx(qmodel, x, tmp_path / "net.onnx", check=False).path.exists()


def test_tensorrt_rules_are_part_of_the_verb(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    done = export_onnx(quantized(Residual(), x, "int8_tensorrt"), x, tmp_path / "good.onnx")
    assert done.exported.target == "tensorrt" and not [f for f in done.findings if f.level == "error"]
    with pytest.raises(ExportError, match="break its rules"):
        export_onnx(quantized(Residual(), x), x, tmp_path / "bad.onnx", target="tensorrt")
    assert not (tmp_path / "bad.onnx").exists()


def test_only_captured_models(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="only captured models"):
        export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "net.onnx")
