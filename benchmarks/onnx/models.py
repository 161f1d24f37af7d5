"""The models whose latency is measured, with random weights: speed does not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

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


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Call]]] = {
    "ResNet-18": (resnet.resnet18, _image(224)),
    "ResNet-50": (resnet.resnet50, _image(224)),
    "MobileNetV2": (mobilenet.MobileNetV2, _image(224)),
    "MobileNetV3-small, shortened": (mobilenet.MobileNetV3Small, _image(224)),
    "EfficientNet-Lite0": (efficientnet_lite.EfficientNetLite0, _image(224)),
    "U-Net": (unet.UNet, _image(128)),
    "ViT-small": (vit.ViT, _image(224)),
    "BERT-small": (_bert, _tokens(128)),
}
