"""Models with something to recover, and the work that a recovery step gets."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import Job
from sparsebit.quantization.calibration.steps import make_job
from tests.quantization.nets import config


def open_job(
    net: nn.Module, *batches: Tensor, calibrated: bool = False, **changes: Any
) -> tuple[QuantModel, Job]:
    """A model whose calibration has seen some batches, and what the first (or the last) steps then get."""
    qmodel = QuantModel(net.eval(), config(**changes), batches[0])
    qmodel.prepare_calibration()
    for batch in batches:
        qmodel(batch)
    calibration = qmodel.calibration
    assert calibration is not None
    if calibrated:
        qmodel.calc_qparams()
    else:
        calibration.close()
        qmodel.calibration = None
    return qmodel, make_job(qmodel, calibration, None, False)


def snapshot(net: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(net.state_dict())


def is_same(net: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def unequal(module: nn.Module, seed: int = 0) -> nn.Module:
    """Output channels of very different size in every layer."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)):
                factor = torch.logspace(-1.5, 1, len(layer.weight))[
                    torch.randperm(len(layer.weight), generator=generator)
                ]
                layer.weight.mul_(factor.view(-1, *[1] * (layer.weight.dim() - 1)))
                if layer.bias is not None:
                    layer.bias.mul_(factor)
    return module


class Plain(nn.Sequential):
    """conv, activation, depthwise, activation, conv, activation, pool, conv."""

    def __init__(self, activation: nn.Module, bias: bool = True) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, padding=1, bias=bias),
            copy.deepcopy(activation),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=bias),
            copy.deepcopy(activation),
            nn.Conv2d(8, 6, 1, bias=bias),
            copy.deepcopy(activation),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 4, 1, bias=bias),
        )


class RMSNorm(nn.Module):
    """Written out, as language models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Encoder(nn.Module):
    """Pre-norm transformer layers, one head."""

    def __init__(self, norm: type[nn.Module], width: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(norm, width) for _ in range(layers)])
        self.last, self.head = norm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.head(self.last(x))
        return y


class EncoderLayer(nn.Module):
    def __init__(self, norm: type[nn.Module], width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        scores = self.q(h) @ self.k(h).transpose(1, 2) / 3.0
        x = x + self.o(torch.softmax(scores, -1) @ self.v(h))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class Dense(nn.Module):
    """Every layer reads the results of all before it."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 + 4 * i, 4, 3, padding=1) for i in range(depth)])
        self.last = nn.Conv2d(3 + 4 * depth, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], 1)
        y: Tensor = self.last(x)
        return y
