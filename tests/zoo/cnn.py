"""Convolutional nets of our own, from the published architectures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from .entry import Call, ZooEntry, floats, image_sizes, images, integers, zoo_entry
from .nets.cifar_resnet import cifar_resnet20, cifar_resnet56
from .nets.densenet import DenseNet
from .nets.efficientnet_lite import EfficientNetLite0
from .nets.espnet import ESPNet
from .nets.fastestdet import FastestDet
from .nets.fpn import FPN
from .nets.generators import ConvAutoencoder, GanGenerator, PixelShuffleSR
from .nets.inception import GoogLeNet
from .nets.mobilenet import MobileNetV2, MobileNetV3Small
from .nets.repvgg import RepVGG
from .nets.resnet import resnet18, resnet50
from .nets.shufflenet import ShuffleNetV2
from .nets.squeezenet import SqueezeNet
from .nets.unet import UNet
from .nets.vgg import VGG, AlexNet
from .nets.waveform import VideoNet
from .nets.yolo import Yolo


def _cnn(
    name: str, build: Callable[[], nn.Module], size: int = 32, *others: tuple[int, int], **rest: Any
) -> ZooEntry:
    rest.setdefault("inputs", images(size))
    rest.setdefault("other_sizes", image_sizes(*others))
    return zoo_entry(name, "cnn", build, **rest)


def _generator_inputs(batch: int) -> Call:
    return (floats(batch, 16), integers(4, batch)), {}


ENTRIES = [
    _cnn("resnet18", partial(resnet18, width=8, classes=10), 32, (48, 64)),
    _cnn("resnet50", partial(resnet50, width=8, classes=10), 32, (64, 48)),
    _cnn("cifar_resnet20", partial(cifar_resnet20, width=8), 32, (24, 40)),
    _cnn("cifar_resnet56", partial(cifar_resnet56, width=4), 16, (32, 32)),
    _cnn("mobilenet_v2", partial(MobileNetV2, width=0.25, classes=10), 32, (64, 48)),
    _cnn("mobilenet_v3", MobileNetV3Small, 32, (48, 64)),
    _cnn("efficientnet_lite", partial(EfficientNetLite0, classes=10, depth=6, head=64), 32, (33, 47)),
    _cnn("densenet", DenseNet, 32, (48, 40)),
    _cnn("shufflenet_v2", ShuffleNetV2, 32, (48, 40)),
    _cnn("squeezenet", SqueezeNet, 32, (45, 50)),
    _cnn("googlenet", GoogLeNet, 32, (40, 48)),
    _cnn("repvgg", RepVGG, 32, (40, 48)),
    _cnn("vgg", partial(VGG, (8, "M", 16, 16, "M"), size=16), 16),
    _cnn("vgg_without_bn", partial(VGG, (8, "M", 16, "M"), size=16, batch_norm=False), 16),
    _cnn("alexnet", partial(AlexNet, width=8, classes=10), 64, (96, 80)),
    _cnn("unet", partial(UNet, width=8, depth=2), 32, (36, 44), (37, 43)),
    _cnn("unet_bilinear", partial(UNet, width=8, depth=2, bilinear=True), 32, (36, 44)),
    _cnn("fpn", FPN, 32, (48, 40), notes="ordered dict of maps"),
    _cnn("yolo", Yolo, 32, (48, 64), notes="eval and train return different structures"),
    _cnn("fastestdet", partial(FastestDet, classes=4), 64, (96, 64)),
    _cnn("espnet", partial(ESPNet, p=1, q=1), 32, (40, 48)),
    _cnn(
        "pixel_shuffle_sr",
        PixelShuffleSR,
        inputs=images(16, channels=1),
        other_sizes=image_sizes((12, 20), channels=1),
    ),
    _cnn("conv_autoencoder", ConvAutoencoder, 16, (24, 20)),
    _cnn("gan_generator", GanGenerator, inputs=_generator_inputs),
    _cnn(
        "video_conv3d",
        VideoNet,
        inputs=lambda batch: ((floats(batch, 3, 4, 16, 16),), {}),
        other_sizes=lambda: [((floats(2, 3, 6, 20, 24),), {})],
    ),
]
