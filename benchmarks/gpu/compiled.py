"""``torch.compile`` of a quantized model: does it train, without a graph break, to the same gradients?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sparsebit
from sparsebit.numerics import snapping


def compare(kind: str, kernels: bool, device: str = "cuda") -> str | None:
    """What differs in a training step between the model as it is and compiled; None where nothing does."""
    before, snapping.USE_KERNELS = snapping.USE_KERNELS, kernels
    try:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)
        )
        x = torch.randn(2, 3, 8, 8)
        config = {
            "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": kind, "BIT": 4}},
            "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": kind, "BIT": 4}},
        }
        model = sparsebit.QuantModel(net, config, example_inputs=(x,))
        model.calibrate([x], progress=False)
        model.init_QAT()
        model.set_quant(True, True)
        model.to(device).train()
        x = x.to(device)
        torch._dynamo.reset()
        found = [_step(model, f, x) for f in (model, torch.compile(model, fullgraph=True))]
    finally:
        snapping.USE_KERNELS = before
    wrong = [
        f"{name}: off by {float((a - b).abs().max()):.3g} of {float(a.abs().max()):.3g}"
        for (name, a), b in zip(found[0].items(), found[1].values(), strict=True)
        if not torch.allclose(a, b, rtol=1e-2, atol=1e-3)
    ]
    return "; ".join(wrong) or None


def _step(model: nn.Module, function: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    function(x).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
