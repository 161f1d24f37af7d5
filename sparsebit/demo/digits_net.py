"""The demo's model: a small residual network for 8×8 grey images, and its trained weights."""

from __future__ import annotations

from importlib import resources

import torch
from torch import Tensor, nn

WEIGHTS = resources.files("sparsebit.demo").joinpath("digits.safetensors")


class DigitsNet(nn.Module):
    """Four convolutions, two of them around residual additions, and a linear classifier; untrained."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = _conv(1, width)
        self.block = nn.Sequential(_conv(width, width), _conv(width, width, relu=False))
        self.down = _conv(width, 2 * width, stride=2)
        self.mix = _conv(2 * width, 2 * width, relu=False)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, 10] of images [N, 1, 8, 8]."""
        x = self.stem(images)
        x = torch.relu(x + self.block(x))
        x = self.down(x)
        x = torch.relu(x + self.mix(x))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def _conv(inputs: int, outputs: int, *, stride: int = 1, relu: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if relu else []))


def net() -> DigitsNet:
    """The trained network in evaluation mode, for commands such as ``sparsebit capture sparsebit.demo:net``."""
    from safetensors.torch import load

    model = DigitsNet()
    stored = load(WEIGHTS.read_bytes())  # kept in half precision, which costs no accuracy
    model.load_state_dict({name: t.float() if t.is_floating_point() else t for name, t in stored.items()})
    return model.eval()
