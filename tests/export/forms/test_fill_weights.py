"""Weights fill the 8 bits that kernels read; the numbers are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from torch import nn

from sparsebit.export import check, export_graph
from sparsebit.export.proof.file_side import stored_weights
from tests.export.nets import config, initializers, quantized

X = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()


@pytest.mark.parametrize("scheme", ["per-channel-symmetric", "per-channel-affine", "per-tensor-symmetric"])
@pytest.mark.parametrize(("bits", "activation_bits"), [(2, 8), (3, 4), (4, 8), (4, 4), (5, 8), (8, 8)])
def test_codes_are_larger_and_numbers_the_same(
    bits: int, activation_bits: int, scheme: str, tmp_path: Path
) -> None:
    qmodel = quantized(net(), X, config(w={"bits": bits, "scheme": scheme}, a={"bits": activation_bits}))
    done = export_graph(qmodel.model, (X,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((X,), {})])
    assert report.ok and {op.runs_as for op in report.ops} == {"QLinearConv"}, report
    weights = dict(stored_weights(onnx_ir.load(done.path)))
    for name, quantizer in qmodel.quantizers.items():
        if quantizer.side == "W":
            assert np.array_equal(weights[name], quantizer(qmodel.model.get_parameter(name)).detach().numpy())
    assert done.rewrites["fill_weight"] == (0 if bits == 8 else 2)
    scale = next(t for n, t in initializers(done.path).items() if n.startswith("0.weight.scale"))
    steps = quantizer_scale(qmodel.quantizers["0.weight"].scale) / onnx.numpy_helper.to_array(scale).reshape(
        -1
    )
    assert np.array_equal(np.log2(steps), np.round(np.log2(steps))) and steps.min() >= (1 if bits > 4 else 8)


def quantizer_scale(scale: torch.Tensor) -> np.ndarray:
    return scale.detach().reshape(-1).numpy()


def test_two_products_of_8_bits_fit_into_16(tmp_path: Path) -> None:
    """CPUs without VNNI add pairs of products in 16 bits; a weight that is filled must not make them overflow."""
    qmodel = quantized(net(), X, config(w={"bits": 2}))
    done = export_graph(qmodel.model, (X,), path=tmp_path / "net.onnx")
    codes = onnx.numpy_helper.to_array(
        next(t for n, t in initializers(done.path).items() if n.startswith("0.weight.codes"))
    ).astype(int)
    assert 32 <= np.abs(codes).max() <= 64 and 2 * 255 * np.abs(codes).max() < 2**15
