"""One quantized tensor: what is clipped, and by how much it errs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import profile
from sparsebit.analysis.profiling.tensor_error import TensorSums, grid_ends
from sparsebit.quantization import QuantModel, parse_qconfig
from tests.analysis.profiling.nets import quantized


def test_clipping_is_counted(batches: list[Tensor]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    qmodel = quantized(net, batches)
    quantizer = qmodel.quantizers["input_1"]
    wide = 3 * torch.cat(batches)  # calibrated on a third of this
    low, high = grid_ends(quantizer, wide)
    expected = ((wide < low) | (wide > high)).float().mean().item()
    found = profile(qmodel, wide).layers[0].inputs[0]
    assert found.clipped == pytest.approx(expected) and expected > 0.01
    assert found.lo == wide.min().item() and found.hi == wide.max().item()
    assert found.grid_lo == pytest.approx(torch.cat(batches).min().item(), rel=0.02)
    assert "outside its grid" in found.why()


@pytest.mark.parametrize("scheme", ["per-tensor-affine", "per-channel-symmetric", "per-group-symmetric"])
@pytest.mark.parametrize("inputs", [16, 17])
def test_what_is_clipped_is_what_moves_by_more_than_half_a_step(scheme: str, inputs: int) -> None:
    torch.manual_seed(0)
    config = parse_qconfig(
        "w4a16_g128", ["DEVICE=cpu", "FIRST_LAST=null", f"W.QSCHEME={scheme}", "W.GROUP_SIZE=8"]
    )
    net, x = nn.Sequential(nn.Linear(inputs, 6)), torch.randn(4, inputs)
    qmodel = QuantModel(net, config, example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    quantizer, weight = qmodel.quantizers["0.weight"], 2 * net[0].weight.detach()
    sums = TensorSums(quantizer)
    sums.add(weight)
    found = sums.finish()
    low, high = grid_ends(quantizer, weight, beyond=0.0)
    step = (high - low) / 15
    moved = ((quantizer.snap(weight) - weight).abs() > 0.5 * step * (1 + 1e-5)).float().mean().item()
    assert found is not None and found.clipped == pytest.approx(moved) and moved > 0
