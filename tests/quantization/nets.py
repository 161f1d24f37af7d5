"""Small models and configs that the tests of quantization share."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.targets import TARGETS


def config(backend: str = "virtual", **changes: Any) -> dict[str, Any]:
    """8 bits everywhere, in the schemes a backend takes. Keys are dotted with double underscores: ``W__QSCHEME``."""
    symmetric = backend == "tensorrt"
    made: dict[str, Any] = {
        "BACKEND": backend,
        "DEVICE": "cpu",
        "SCHEDULE": {"FUSE_BN": True},
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 8}},
        "A": {
            "QSCHEME": "per-tensor-symmetric" if symmetric else "per-tensor-affine",
            "QUANTIZER": {"BIT": 8},
        },
    }
    for key, value in changes.items():
        section = made
        *above, last = key.split("__")
        for name in above:
            section = section.setdefault(name, {})
        section[last] = value
    return made


CONFIGS = {name: config(name) for name in sorted(TARGETS)}


class Residual(nn.Module):
    """conv-bn-relu twice with a skip around the second, pooled and classified."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.drop = nn.MaxPool2d(2), nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.pool(F.relu(self.bn2(self.conv2(x)) + x))
        y: Tensor = self.fc(self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        return y


def residual(seed: int = 0) -> Residual:
    """In evaluation mode, with batch norms that do something."""
    torch.manual_seed(seed)
    net = Residual()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return net.eval()


def images(batch: int = 4, seed: int = 0) -> Tensor:
    """[batch, 3, 8, 8]"""
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def quantized(
    net: nn.Module | None = None, settings: Any = None, *batches: Tensor, on: bool = True
) -> QuantModel:
    """A calibrated model, which is quantized; or with its quantizers off."""
    batches = batches or (images(),)
    qmodel = QuantModel(net or residual(), settings or config(), example_inputs=(batches[0],))
    qmodel.calibrate(batches, progress=False)
    if not on:
        qmodel.set_quant(w_quant=False, a_quant=False)
    return qmodel


def grids(qmodel: QuantModel) -> dict[str, tuple[list[float], list[float]]]:
    """Scales and zero points of every quantizer, as numbers that compare."""
    return {name: (q.scale.tolist(), q.zero_point.tolist()) for name, q in qmodel.quantizers.items()}
