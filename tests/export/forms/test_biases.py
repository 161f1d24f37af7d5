"""Biases are rounded as the integer kernels want them, unless that would show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from sparsebit.export import check, export_graph
from tests.export.nets import Tokens, config, initializers, op_types, quantized


class Wide(nn.Module):
    """A product over many inputs, so that the step of its bias is small against its result."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(512), nn.Linear(512, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.norm(x))  # type: ignore[no-any-return]


def test_a_bias_whose_rounding_does_not_show_has_the_scale_of_its_products(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 512)
    qmodel = quantized(Wide(), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", dynamic_axes=None)
    tensors = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in initializers(done.path).items()}
    assert tensors["up.bias.codes"].dtype == np.int32
    wanted = tensors["norm.scale"] * tensors["up.weight.scale"]
    assert np.array_equal(tensors["up.bias.scale"], wanted)
    bias = qmodel.get_parameter("model.up.bias").detach().numpy()
    assert np.abs(tensors["up.bias.codes"] * wanted - bias).max() <= wanted.max() / 2 * 1.001
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and [op.runs_as for op in report.ops] == ["QGemm"], report
    # with a free batch the runtime adds the bias apart anyway, and then it may as well be exact
    free = export_graph(qmodel.model, (x,), path=tmp_path / "free.onnx")
    report = check(qmodel.model, free, [((x,), {})])
    assert report.ok and [op.runs_as for op in report.ops] == ["MatMulIntegerToFloat"], report
    assert report.outputs[0].piece_error < 1e-6


@pytest.mark.parametrize("bits", [2, 4])
def test_a_bias_whose_rounding_would_show_stays_in_float_and_the_product_on_integers(
    bits: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 32)
    qmodel = quantized(Tokens(), x, config(a={"bits": bits}))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", dynamic_axes=None)
    assert "down.bias.negated" in initializers(done.path)
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and report.ops[1].runs_as == "MatMulIntegerToFloat" and not report.fallbacks, report
    assert report.mismatch_share < 1e-3 and report.outputs[0].piece_error < 1e-6


@pytest.mark.parametrize("rank", [2, 3])
def test_a_bias_too_large_for_its_scale_stays_in_float_and_the_product_on_integers(
    rank: int, tmp_path: Path
) -> None:
    x = 1e-6 * torch.randn(*((2, 16) if rank == 2 else (2, 5, 16)))
    layer = nn.Linear(16, 8)
    with torch.no_grad():
        layer.weight.mul_(1e-3)
        layer.bias.add_(5)
    qmodel = quantized(nn.Sequential(layer), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and [op.runs_as for op in report.ops] == ["MatMulIntegerToFloat"], report


def test_a_convolution_whose_kernel_would_lose_its_bias_runs_in_float(tmp_path: Path) -> None:
    """Two bits over a range that is hardly used: a step of the bias is larger than the results."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(net, x, config(a={"bits": 2}))
    with torch.no_grad():
        qmodel.quantizers["input_1"].scale.mul_(100)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and done.rewrites["float_bias"] == 1 and "Sub" in op_types(done.path), report
    assert report.mismatch_share == 0
    assert {op.name: op.on_integers for op in report.ops} == {"0/Conv": False, "2/Conv": True}
