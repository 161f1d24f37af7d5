"""Every operator that some target quantizes, alone between quantized tensors: its codes are those of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.export import check, export_graph
from sparsebit.targets import TARGETS
from tests.export.nets import config, quantized

CHANNELS = 32
SHAPES = {2: (512, 8), 3: (4, 8, 128), 4: (4, 8, 16, 16), 5: (2, 8, 8, 8, 8)}
CONVOLUTIONS: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {
    3: nn.Conv1d,
    4: nn.Conv2d,
    5: nn.Conv3d,
}


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Product(nn.Module):
    """``addmm`` with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(CHANNELS, CHANNELS)),
            nn.Parameter(torch.randn(CHANNELS)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Lookup(nn.Module):
    """A table, read at the place of the largest number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x.argmax(1)) + x  # type: ignore[no-any-return]


def gate(x: Tensor) -> Tensor:
    return x * x.flip(2)


C = CHANNELS
# operator: its form, and the rank of what it takes
OPS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "conv1d": (lambda: nn.Conv1d(C, C, 3), 3),
    "conv2d": (lambda: nn.Conv2d(C, C, 3), 4),
    "conv3d": (lambda: nn.Conv3d(C, C, 3), 5),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(C, C, 2), 3),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(C, C, 2, stride=2), 4),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(C, C, 2), 5),
    "linear": (lambda: nn.Linear(C, C), 2),
    "addmm": (Product, 2),
    "matmul": (lambda: Function(lambda x: x @ x.transpose(-1, -2)), 4),
    "scaled_dot_product_attention": (lambda: Function(lambda x: F.scaled_dot_product_attention(x, x, x)), 4),
    "embedding": (Lookup, 2),
    "add": (lambda: Function(lambda x: x + x.flip(2)), 4),
    "mul": (lambda: Function(gate), 4),
    "cat": (lambda: Function(lambda x: torch.cat([x[:, : C // 2], gate(x)[:, C // 2 :]], 1)), 4),
    "interpolate": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 4),
    "softmax": (lambda: nn.Softmax(1), 4),
    "layer_norm": (lambda: nn.LayerNorm(C), 2),
    "group_norm": (lambda: nn.GroupNorm(4, C), 4),
    "mean": (lambda: Function(lambda x: x.mean(2, keepdim=True)), 4),
    "avg_pool1d": (lambda: nn.AvgPool1d(2), 3),
    "avg_pool2d": (lambda: nn.AvgPool2d(2), 4),
    "avg_pool3d": (lambda: nn.AvgPool3d(2), 5),
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(64), 3),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d(8), 4),
    "adaptive_avg_pool3d": (lambda: nn.AdaptiveAvgPool3d(4), 5),
    **{
        name: (lambda kind=kind: kind(), 4)  # type: ignore[misc]
        for name, kind in {
            "relu": nn.ReLU,
            "relu6": nn.ReLU6,
            "hardtanh": nn.Hardtanh,
            "sigmoid": nn.Sigmoid,
            "silu": nn.SiLU,
            "leaky_relu": nn.LeakyReLU,
            "mish": nn.Mish,
            "hardsigmoid": nn.Hardsigmoid,
            "hardswish": nn.Hardswish,
            "elu": nn.ELU,
            "gelu": nn.GELU,
            "tanh": nn.Tanh,
            "prelu": nn.PReLU,
        }.items()
    },
    "clamp": (lambda: Function(lambda x: x.clamp(-0.9, 1.3)), 4),
}


class Sandwich(nn.Module):
    """An operator between two layers whose inputs and outputs are quantized."""

    def __init__(self, operator: nn.Module, rank: int) -> None:
        super().__init__()
        channels = SHAPES[rank][1]
        make = CONVOLUTIONS.get(rank)
        self.first = make(channels, C, 3, padding=1) if make else nn.Linear(channels, C)
        self.operator = operator
        self.last = make(C, 2 * C, 1, bias=False) if make else nn.Linear(C, 2 * C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.operator(self.first(x)))  # type: ignore[no-any-return]


def test_every_operator_that_a_target_quantizes_is_here() -> None:
    assert set(OPS) == {op for target in TARGETS.values() for op in target.rules}


@pytest.mark.parametrize("name", OPS)
def test_no_code_is_off_by_more_than_one_and_few_are_off(name: str, tmp_path: Path) -> None:
    make, rank = OPS[name]
    torch.manual_seed(0)
    x, other = torch.randn(SHAPES[rank]), torch.randn(SHAPES[rank])
    backend = "onnxruntime" if TARGETS["onnxruntime"].rule(name) is not None else "virtual"
    qmodel = quantized(Sandwich(make(), rank), x, config(BACKEND=backend))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((other,), {})])
    assert report.ok, report
    codes = [tensor for tensor in report.tensors if tensor.side == "A"]
    assert len(codes) >= 2
    assert max(tensor.largest for tensor in codes) <= 1, report
    assert all(tensor.share < 1e-3 for tensor in codes), report
    assert sum(tensor.mismatched for tensor in report.tensors if tensor.side == "W") == 0


def test_few_products_leave_more_of_the_bias_to_see(tmp_path: Path) -> None:
    """The int32 bias of a narrow convolution is coarse beside its result: the one case above a code in a thousand."""
    torch.manual_seed(0)
    x, other = torch.randn(4, 16, 16, 16), torch.randn(4, 16, 16, 16)
    net = nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Conv2d(16, 64, 1))
    qmodel = quantized(net, x, config(BACKEND="onnxruntime"))
    report = check(
        qmodel.model, export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx"), [((other,), {})]
    )
    assert report.ok, report
    codes = [tensor for tensor in report.tensors if tensor.side == "A"]
    assert max(tensor.largest for tensor in codes) <= 1
    assert all(tensor.share < 3e-3 for tensor in codes), report
