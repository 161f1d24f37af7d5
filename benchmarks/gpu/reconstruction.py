"""``brecq`` and ``adaround`` of a ResNet-32 on the GPU: steps that are replayed, beside steps that are called."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import sparsebit
from sparsebit.quantization.algorithms.reconstruction import steps
from tests.zoo.nets.cifar_resnet import CifarResNet


def measure(images: int = 1024) -> Iterator[dict[str, Any]]:
    """Seconds, and the error that is left."""
    torch.manual_seed(0)
    net = CifarResNet(5).cuda().eval()
    x = torch.randn(images, 3, 32, 32, device="cuda")
    for method, recorded, count in (
        ("brecq", True, 200), ("brecq", False, 200), ("adaround", True, 200), ("adaround", False, 200),
        ("brecq", True, 2000),
    ):  # fmt: skip
        before, steps.USE_GRAPHS = steps.USE_GRAPHS, recorded
        try:
            config = {
                "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "uniform", "BIT": 3}},
                "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "uniform", "BIT": 4}},
                "SCHEDULE": {"FUSE_BN": True, "RECOVERY": [{method: {"steps": count}}]},
            }
            model = sparsebit.QuantModel(net, config, example_inputs=(x[:2],))
            torch.cuda.synchronize()
            start = time.perf_counter()
            model.calibrate(x.split(64), progress=False)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            with torch.no_grad():
                error = float((model(x) - net(x)).square().mean() / net(x).square().mean())
        finally:
            steps.USE_GRAPHS = before
        yield {"method": method, "recorded": recorded, "steps": count, "seconds": seconds, "error": error}
