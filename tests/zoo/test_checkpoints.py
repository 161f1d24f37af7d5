"""The full-size nets load the public checkpoints by name and classify as they should."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from .nets.cifar_resnet import cifar_resnet20, cifar_resnet56
from .nets.efficientnet_lite import EfficientNetLite0
from .nets.espnet import ESPNet
from .nets.fastestdet import FastestDet

CHECKPOINTS: dict[str, Callable[[], nn.Module]] = {
    "cifar10_resnet20": cifar_resnet20,
    "cifar10_resnet56": cifar_resnet56,
    "imagenet_efficientnet_lite0": EfficientNetLite0,
    "camvid_espnet": ESPNet,
    "coco_fastestdet": FastestDet,
}


def loaded(folder: Path, name: str) -> nn.Module:
    model = CHECKPOINTS[name]()
    model.load_state_dict(
        torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True), strict=True
    )
    return model.eval()


@pytest.fixture(scope="module")
def cifar(data_dir: Path) -> tuple[Tensor, Tensor]:
    """The first 200 test images, normalized [200, 3, 32, 32], and their labels."""
    with numpy.load(data_dir / "cifar10_test.npz") as file:
        images, labels = torch.from_numpy(file["images"][:200]), torch.from_numpy(file["labels"][:200])
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((images / 255 - mean) / std).permute(0, 3, 1, 2).contiguous(), labels.long()


@pytest.mark.parametrize("name", ["camvid_espnet", "coco_fastestdet"])
def test_loads_strictly(data_dir: Path, name: str) -> None:
    loaded(data_dir, name)


@pytest.mark.parametrize("name", ["cifar10_resnet20", "cifar10_resnet56"])
def test_cifar_accuracy(data_dir: Path, cifar: tuple[Tensor, Tensor], name: str) -> None:
    images, labels = cifar
    with torch.no_grad():
        accuracy = (loaded(data_dir, name)(images).argmax(1) == labels).float().mean()
    assert accuracy > 0.88


def test_imagenet_accuracy(data_dir: Path) -> None:
    with zipfile.ZipFile(data_dir / "imagenet_val1000.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))[:25]
        pixels = [numpy.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    images = torch.from_numpy(numpy.stack(pixels)[:, 16:240, 16:240]).permute(0, 3, 1, 2)
    labels = torch.tensor([int(Path(name).name[:4]) for name in names])
    with torch.no_grad():
        predicted = loaded(data_dir, "imagenet_efficientnet_lite0")((images - 127.0) / 128.0).argmax(1)
    assert (predicted == labels).float().mean() > 0.6
