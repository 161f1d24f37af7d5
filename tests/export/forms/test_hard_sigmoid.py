"""Gates and HardSwish run on integers in ONNX Runtime, and their files agree with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.export import check, export_graph
from tests.export.nets import config, op_types, quantized


class Gated(nn.Module):
    """Convolutions with an activation, and a gate for each channel between them."""

    def __init__(self, activation: nn.Module, gate: nn.Module, *, kernel: int = 5, bias: bool = True) -> None:
        super().__init__()
        self.first, self.activation = nn.Conv2d(3, 16, kernel, padding=1), activation
        self.pool, self.squeeze = nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1, bias=bias)
        self.gate, self.last = gate, nn.Conv2d(16, 40, 3)
        with torch.no_grad():
            self.first.weight *= 8
            self.squeeze.weight *= 4

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.first(x))
        return self.last(x * self.gate(self.squeeze(self.pool(x))))  # type: ignore[no-any-return]


SETTINGS: dict[str, Any] = {
    "preset": "int8_onnxruntime",
    "symmetric": config(a={"scheme": "per-tensor-symmetric"}),
    "four bits": config(a={"bits": 4}),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize(
    ("activation", "gate"), [(nn.Hardswish, nn.Hardsigmoid), (nn.SiLU, nn.Sigmoid)], ids=["hard", "smooth"]
)
def test_activations_and_gates_run_on_integers(
    activation: type[nn.Module], gate: type[nn.Module], setting: Any, tmp_path: Path
) -> None:
    x = torch.randn(2, 3, 12, 12)
    qmodel = quantized(Gated(activation(), gate()), x, setting)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {}), ((4 * x,), {})])
    assert report.ok, report
    assert not report.float_ops and not report.fallbacks
    assert [op.runs_as for op in report.ops].count("QLinearMul") == 2
    assert "HardSigmoid" not in op_types(done.path)
    assert done.rewrites["hard_sigmoid"] == (2 if activation is nn.Hardswish else 0)


def test_a_convolution_adds_the_shift_with_its_bias(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 12, 12)
    qmodel = quantized(Gated(nn.ReLU(), nn.Hardsigmoid(), bias=False), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert check(qmodel.model, done, [((4 * x,), {})]).ok
    assert done.rewrites["hard_sigmoid"] == 1
    assert not {"Add", "Clip", "HardSigmoid"} & set(op_types(done.path))  # the range of the grid clips


@pytest.mark.parametrize("target", ["openvino", "virtual"])
def test_other_runtimes_keep_the_operator(target: str, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 12, 12)
    setting = config() | {"BACKEND": target}
    qmodel = quantized(Gated(nn.Hardswish(), nn.Hardsigmoid()), x, setting)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", target=target)
    assert op_types(done.path).count("HardSigmoid") >= 1
    assert not {"hard_sigmoid", "fourth_channel"} & set(done.rewrites)


def test_a_gate_in_float_stays_what_it_is(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 12, 12)
    qmodel = quantized(Gated(nn.Hardswish(), nn.Hardsigmoid(), kernel=3), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and done.rewrites["hard_sigmoid"] == 0
    assert op_types(done.path).count("HardSigmoid") == 2
