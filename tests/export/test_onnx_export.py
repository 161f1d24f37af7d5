from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from sparsebit import capture
from sparsebit.batches import DataError
from sparsebit.errors import CaptureError
from sparsebit.export import ExportError, export_onnx
from sparsebit.export import export_onnx as verb
from sparsebit.export import verb as short_verb
from sparsebit.quantization import QuantModel
from tests.export.nets import Residual, Tokens, close, op_types, quantized, run_file


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
    assert "planned operators run on integers" in str(done)


def test_a_file_has_one_precision(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    for model in (quantized(Residual(), x), Residual().eval()):
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(ExportError, match="autocast is on") as error,
        ):
            export_onnx(model, x, tmp_path / "net")
        assert "outside of the autocast block" in str(error.value)


def test_what_is_compared_on_is_batches_of_data(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    done = export_onnx(qmodel, x, tmp_path / "net", calls=[x, (x[:1], torch.tensor([1]))])
    assert done.report is not None and done.report.ok
    one = export_onnx(qmodel, x, tmp_path / "net", calls=x).report
    assert one is not None and one.outputs[0].samples == 2
    with pytest.raises(DataError, match="int cannot be read as data"):
        export_onnx(qmodel, x, tmp_path / "other", calls=3)
    with pytest.raises(ExportError, match="nothing was compared: all outputs are empty"):
        export_onnx(qmodel, x[:0], tmp_path / "other")
    with pytest.raises(CaptureError, match="argument 'x' was a tensor"):
        export_onnx(qmodel, x, tmp_path / "other", calls=["x"])
    assert not (tmp_path / "other.onnx").exists()


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
    with pytest.raises(ExportError, match="violations of its rules"):
        export_onnx(quantized(Residual(), x), x, tmp_path / "bad.onnx", target="tensorrt")
    assert not (tmp_path / "bad.onnx").exists()


def test_a_plain_module_is_captured_first(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    done = short_verb.export_onnx(model, tmp_path / "net", x)
    assert done.path == tmp_path / "net.onnx" and done.report is not None and done.report.ok
    assert op_types(done.path) == ["Conv", "Relu"] and not done.exported.tensors


def test_what_was_calibrated_is_exported_whatever_the_switches_say(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    qmodel.set_quant(w_quant=False, a_quant=False)
    done = export_onnx(qmodel, x, tmp_path / "net.onnx")
    assert len(done.exported.tensors) > 6 and done.report is not None and done.report.ok
    assert not any(quantizer.is_enable for quantizer in qmodel.quantizers.values())
    plain = export_onnx(qmodel, x, tmp_path / "float.onnx", quantized=False)
    assert not plain.exported.tensors and "QuantizeLinear" not in op_types(plain.path)
    assert plain.report is not None and plain.report.ok and close(run_file(plain.path, x)[0], qmodel(x), 1e-4)


def test_what_was_not_calibrated_says_what_to_call(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = QuantModel(Residual().eval(), "int8_onnxruntime", example_inputs=(x,))
    with pytest.raises(ExportError, match=r"has no scale yet[\s\S]*call calibrate\(data\) before exporting"):
        export_onnx(qmodel, x, tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_is_refused_at_once_and_half_precision_is_checked(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    with pytest.raises(ExportError, match=r"bfloat16 models cannot be exported[\s\S]*call .float\(\)"):
        export_onnx(Tokens().eval().bfloat16(), x.bfloat16(), tmp_path / "net.onnx")
    half = quantized(Tokens().eval().half(), x.half())
    assert export_onnx(half, x.half(), tmp_path / "half.onnx").path.is_file()
    double = quantized(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 5)).double(), x.double())
    assert export_onnx(double, x.double(), tmp_path / "double.onnx").path.is_file()


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_place_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match="has no name"):
        export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), name)


class TwoRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(2.0)[:, None]


def test_a_batch_that_had_to_be_fixed_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(2, 4)
    done = export_onnx(TwoRows(), x, tmp_path / "net.onnx")
    assert "batch: fixed, the file accepts only inputs of the example's size" in str(done)
    assert "batch: fixed" in caplog.text
    caplog.clear()
    done = export_onnx(TwoRows(), x, tmp_path / "net.onnx", dynamic_axes={})
    assert "batch: fixed" not in str(done) + caplog.text, "it was asked for"
