"""Weights of a model snapped in one launch: to the same step as each alone?"""

from __future__ import annotations

import torch
from torch import nn

import sparsebit
from sparsebit.quantization.training import weight_groups


def compare(kind: str, dtype: torch.dtype) -> str | None:
    """What differs in a training step between grouped weights and weights alone; None where nothing does."""
    before = weight_groups.LARGEST
    found = []
    try:
        for largest in (before, 0):  # with 0 every weight is too large for a group
            weight_groups.LARGEST = largest
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(),
                nn.Flatten(), nn.Linear(16 * 16, 8), nn.ReLU(), nn.Linear(8, 4),
            )  # fmt: skip
            net[2].to(memory_format=torch.channels_last)
            x = torch.randn(4, 3, 8, 8)
            config = {
                "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": kind, "BIT": 4}},
                "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "uniform", "BIT": 8}},
            }
            model = sparsebit.QuantModel(net, config, example_inputs=(x,))
            model.calibrate([x], progress=False)
            model.init_QAT()
            model.to("cuda", dtype).train()
            y = model(x.to("cuda", dtype))
            y.float().square().mean().backward()
            found.append({"y": y, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}})
    finally:
        weight_groups.LARGEST = before
    wrong = [
        f"{name}: differs by {float((a - b).abs().max()):.3g} of {float(b.abs().max()):.3g}"
        for (name, a), b in zip(found[0].items(), found[1].values(), strict=True)
        if not torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-5)
    ]
    return "; ".join(wrong) or None
