"""SmoothQuant: the scales of its paper in the parameters, and the same outputs in float."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.llm.blocks.calls import BlockCall, BlockRuns
from sparsebit.llm.methods.preparation import scale_channels
from sparsebit.llm.methods.smoothquant import SmoothQuant
from sparsebit.llm.methods.solver import WeightSpec


def test_scales_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 8)).requires_grad_(False)
    block[0].weight *= torch.logspace(-1, 1, 16)
    hidden = [torch.randn(2, 6, 16) for _ in range(3)]
    norm, weight = block[0].weight.clone(), block[1].weight.clone()
    inputs = torch.cat([block[0](x).reshape(-1, 16) for x in hidden])
    wanted = block(hidden[0])
    spec_of = lambda name: WeightSpec() if name == "1.weight" else None  # noqa: E731
    scale_channels(SmoothQuant(alpha=0.6), BlockRuns(block, [BlockCall((None,), {}, 0)] * 3, hidden), spec_of)
    scale = inputs.abs().amax(0).pow(0.6) / weight.abs().amax(0).pow(0.4)
    assert torch.allclose(block[1].weight, weight * scale, rtol=1e-4)
    assert torch.allclose(block[0].weight, norm / scale, rtol=1e-4)
    assert torch.allclose(block(hidden[0]), wanted, atol=1e-5)
