"""The models whose latency is measured, with random weights: speed does not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.nets import efficientnet_lite, mobilenet, resnet, unet, vit

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _image(size: int) -> Callable[[], Call]:
    return lambda: ((torch.randn(1, 3, size, size),), {})


def _tokens(length: int) -> Callable[[], Call]:
    return lambda: ((), {"input_ids": torch.randint(1000, (1, length))})


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
    )
    return transformers.BertModel(config)


def _settled(model: nn.Module) -> nn.Module:
    """With the statistics of random images in its batch norms; without them, gates lead to denormal numbers."""
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 224, 224))
    return model


class _GatedBlock(nn.Module):
    """MBConv of EfficientNet (arXiv:1905.11946): SiLU, and a gate for each channel."""

    def __init__(self, kernel: int, stride: int, inputs: int, outputs: int, expand: int) -> None:
        super().__init__()
        hidden, conv = inputs * expand, mobilenet.conv_bn
        self.first = conv(inputs, hidden, 1, act=nn.SiLU) if expand > 1 else nn.Identity()
        self.depthwise = conv(hidden, hidden, kernel, stride, hidden, act=nn.SiLU)
        squeeze = nn.Conv2d(hidden, inputs // 4, 1), nn.SiLU(), nn.Conv2d(inputs // 4, hidden, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), *squeeze, nn.Sigmoid())
        self.project = conv(hidden, outputs, 1, act=None)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.depthwise(self.first(x))
        out: Tensor = self.project(hidden * self.gate(hidden))
        return x + out if self.residual else out


def _efficientnet() -> nn.Module:
    """EfficientNet-B0."""
    rows = enumerate(efficientnet_lite.BLOCKS)
    blocks = [_GatedBlock(*row, expand=6 if index else 1) for index, row in rows]
    head = mobilenet.conv_bn(320, 1280, 1, act=nn.SiLU), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    stem = mobilenet.conv_bn(3, 32, 3, 2, act=nn.SiLU)
    return _settled(nn.Sequential(stem, *blocks, *head, nn.Linear(1280, 1000)))


def _mobilenet_v3(*, full: bool) -> nn.Module:
    net = mobilenet.MobileNetV3Small
    rows, hidden, classes = ((*net.ROWS, *net.REST), 1024, 1000) if full else (net.ROWS, 64, 10)
    return _settled(net(rows=rows, hidden=hidden, classes=classes))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Call]]] = {
    "ResNet-18": (resnet.resnet18, _image(224)),
    "ResNet-50": (resnet.resnet50, _image(224)),
    "MobileNetV2": (mobilenet.MobileNetV2, _image(224)),
    "MobileNetV3-small, shortened": (partial(_mobilenet_v3, full=False), _image(224)),
    "MobileNetV3-small": (partial(_mobilenet_v3, full=True), _image(224)),
    "EfficientNet-B0": (_efficientnet, _image(224)),
    "EfficientNet-Lite0": (efficientnet_lite.EfficientNetLite0, _image(224)),
    "U-Net": (unet.UNet, _image(128)),
    "ViT-small": (vit.ViT, _image(224)),
    "BERT-small": (_bert, _tokens(128)),
}
