"""``brecq`` and ``adaround`` of a ResNet-20 on the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import sparsebit
from tests.zoo import ZOO


def measure(count: int = 100, images: int = 512) -> Iterator[dict[str, Any]]:
    """Seconds, and the error that is left."""
    torch.manual_seed(0)
    net = ZOO["cifar_resnet20"].make().cuda()
    x = torch.randn(images, 3, 32, 32, device="cuda")
    for method in ("brecq", "adaround"):
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
        yield {"method": method, "steps": count, "seconds": seconds, "error": error}
