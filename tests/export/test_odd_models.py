"""Models that once could not be exported: names, orders and grids that surprised a rewrite or a runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

import sparsebit
from tests.export.nets import config, quantized


class Net(nn.Module):
    """Parts by name, and how they are called."""

    def __init__(self, call: Callable[[Any, Tensor], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def narrow(backend: str = "virtual", **sides: Any) -> dict[str, Any]:
    return config(BACKEND=backend, **sides)


def padded_attention(s: Any, x: Tensor) -> Tensor:
    x = torch.nn.functional.pad(s.norm(x), (0, 0, 0, 33))
    batch, length, width = x.shape
    q, k, v = s.qkv(x).reshape(batch, length, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
    a = (q * 8**-0.5 @ k.transpose(-2, -1)).softmax(-1)
    return torch.as_tensor(s.o((a @ v).transpose(1, 2).reshape(batch, length, width)))


def two_readers(s: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    v = s.first(x)
    return s.second(v), v.sin()


CASES: dict[str, tuple[nn.Module, Tensor, Any]] = {
    "a module called body": (
        Net(lambda s, x: s.head(s.body(x)), body=nn.Conv2d(3, 8, 3), head=nn.Conv2d(8, 4, 1)),
        torch.randn(2, 3, 8, 8),
        "int8_onnxruntime",
    ),
    "a float weight whose result is read on integers and in float": (
        Net(
            two_readers,
            first=nn.utils.parametrizations.weight_norm(nn.Linear(32, 24)),
            second=nn.Linear(24, 8),
        ),
        torch.randn(2, 32),
        "int8_onnxruntime",
    ),
    "a clip of numbers and a clip of quantized values at one place": (
        Net(lambda s, x: s.k(s.h(x)), h=nn.ReLU6(), k=nn.Linear(24, 8)),
        torch.randn(2, 21, 24),
        narrow("onnxruntime", w={"bits": 6}, a={"bits": 6}),
    ),
    "one padded value in many places": (
        Net(padded_attention, norm=nn.LayerNorm(32), qkv=nn.Linear(32, 96), o=nn.Linear(32, 32)),
        torch.randn(8, 16, 32),
        "int8_onnxruntime",
    ),
    "a scale per channel of an activation": (
        nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8)),
        torch.randn(2, 6, 16),
        narrow(a={"scheme": "per-channel-affine"}),
    ),
    "a scale per group of a weight and 8-bit activations": (
        nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)),
        torch.randn(2, 5, 16),
        narrow(w={"scheme": "per-group-symmetric", "group_size": 4}),
    ),
    "a scale per token at 6 bits": (
        Net(lambda s, x: s.q(x) @ s.k(x).transpose(1, 2), q=nn.Linear(16, 16), k=nn.Linear(16, 16)),
        torch.randn(2, 32, 16),
        narrow(a={"scheme": "per-token-symmetric", "bits": 6}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_exported_and_right(case: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, setting = CASES[case]
    done = quantized(model, x, setting).export_onnx(x, tmp_path / "net.onnx")
    assert done.report.ok and done.exported.tensors


def test_an_activation_that_depends_on_no_input_is_quantized(tmp_path: Path) -> None:
    model = Net(
        lambda s, x: s.k(x) + s.l(torch.sin(torch.arange(8.0))[None]), k=nn.Linear(8, 64), l=nn.Linear(8, 64)
    )
    x = torch.rand(2, 4, 8)
    done = quantized(model, x).export_onnx(x, tmp_path / "net.onnx")
    assert done.report.ok and {"x", "sin"} <= set(done.exported.tensors)
    assert any(node.name == "sin/QuantizeLinear" for node in onnx.load(str(done.path)).graph.node)
    assert "the quantizer of 'sin' is missing in the translation" in done.exported.attempts[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda s, x: torch.hstack([s.c(x), s.c(x)]),
        lambda s, x: torch.cat(torch.tensor_split(s.c(x), 3, 1)[::-1], 1),
    ],
)
def test_openvino_reads_what_others_write_as_sequences(call: Any, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    x = torch.randn(2, 4, 6, 6)
    qmodel = quantized(Net(call, c=nn.Conv2d(4, 8, 3, padding=1)), x, "int8_openvino")
    assert qmodel.export_onnx(x, tmp_path / "net.onnx").report.ok


def test_a_sum_with_a_constant_that_the_exporter_left_without_a_type(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.l(x).relu() @ self.l.weight + torch.sin(torch.arange(16) * 1.0)

    x = torch.randn(2, 6, 16)
    qmodel = sparsebit.quantize(Net().eval(), [x])
    assert qmodel.export_onnx(x, tmp_path / "a.onnx").report.ok
