"""What the image examples share: pictures of a folder or a zip, and a model named by the user."""

from __future__ import annotations

import importlib
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def pictures(path: Path) -> Iterator[tuple[Image.Image, int]]:
    """Pictures and their classes: subfolders in alphabetical order, or the digits that a name in a zip begins with."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(
                name for name in archive.namelist() if name.lower().endswith((".jpg", ".png"))
            ):
                digits = Path(name).name.split("_")[0]
                yield Image.open(io.BytesIO(archive.read(name))), int(digits) if digits.isdigit() else 0
        return
    folders = sorted(folder for folder in Path(path).iterdir() if folder.is_dir()) or [Path(path)]
    for label, folder in enumerate(folders):
        for file in sorted(
            file for file in folder.iterdir() if file.suffix.lower() in {".jpg", ".jpeg", ".png"}
        ):
            yield Image.open(file), label


def prepared(picture: Image.Image, size: int) -> Tensor:
    """The centre square at ``size`` pixels, normalized: [3, size, size]."""
    picture = picture.convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = picture.crop((left, top, left + side, top + side)).resize(
        (size, size), Image.Resampling.BICUBIC
    )
    pixels = torch.from_numpy(numpy.asarray(picture).copy()) / 255
    return ((pixels - MEAN) / STD).permute(2, 0, 1)


def load(path: Path, size: int, batch: int, limit: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Batches of pictures [N, 3, size, size] and classes [N]."""
    found = []
    for picture, label in pictures(path):
        if limit is not None and len(found) == limit:
            break
        found.append((prepared(picture, size), label))
    images, labels = torch.stack([x for x, _ in found]), torch.tensor([y for _, y in found])
    return list(zip(images.split(batch), labels.split(batch), strict=True))


def make_model(name: str, weights: Path | None = None) -> nn.Module:
    """What ``package.module:factory`` returns, with the state dict of ``weights``, in evaluation mode."""
    module, _, factory = name.partition(":")
    sys.path.insert(0, "")
    model: nn.Module = getattr(importlib.import_module(module), factory)()
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[tuple[Tensor, Tensor]], device: str = "cpu") -> float:
    """Percent of the pictures whose class is right."""
    right = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in batches)
    return 100 * right / sum(len(y) for _, y in batches)
