"""A folder of images as batches. Its subfolders, if any, are the classes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.cli.command import UsageError
from sparsebit.errors import missing_package
from sparsebit.storage.text_file import open_regular

ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
MOST_PIXELS = 10**8  # of an image after it was resized


@dataclass(frozen=True)
class ImageFolder:
    """Images preprocessed as for most models: the shorter side resized, the center cropped, normalized.

    Each class is a subfolder, numbered in the order of their names. Images without subfolders have no labels. One
    number for the mean makes grey images of one channel, three make colour ones.
    """

    folder: Path
    batch_size: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.std) or 0 in self.std:
            raise UsageError(
                "--mean and --std need one number for grey images or three for colour, and no --std of 0",
                got=f"--mean {self.mean} --std {self.std}",
            )

    def files(self) -> list[tuple[Path, int | None]]:
        """Every image file with the number of its class."""
        entries = sorted(self.folder.iterdir())
        classes = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
        found = [(file, None) for file in self._images(self.folder)]
        labelled = [(file, index) for index, place in enumerate(classes) for file in self._images(place)]
        if found and labelled:
            raise UsageError(
                f"{self.folder} holds images beside folders of images",
                expected="images alone, or one subfolder for each class",
                got=f"{found[0][0].name} and {classes[0].name}/",
            )
        if not found and not labelled:
            raise UsageError(
                f"no images in {self.folder}", expected=f"files ending in {', '.join(sorted(ENDINGS))}"
            )
        return [*found, *labelled]

    def _images(self, folder: Path) -> list[Path]:
        return sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS)

    def __len__(self) -> int:
        return -(-len(self.files()) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        files = self.files()
        # Spread over the classes: calibration uses the first batches, and a single class would mislead it.
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
        for start in range(0, len(files), self.batch_size):
            chosen = [files[index] for index in order[start : start + self.batch_size]]
            images = torch.stack([self._read(file) for file, _ in chosen])
            labels = [label for _, label in chosen]
            yield images if labels[0] is None else (images, torch.tensor(labels))

    def _read(self, file: Path) -> Tensor:
        try:
            from PIL import Image
        except ImportError:
            raise missing_package("Pillow", "reading images", extra="images") from None
        try:
            with warnings.catch_warnings(), open_regular(file) as data:
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(data) as opened:
                    if opened.mode.startswith(("I", "F")):  # Pillow would cut off what is brighter than 255
                        raise ValueError(
                            "its numbers have more than 8 bits; convert it to 8 bits per channel"
                        )
                    image = opened.convert("RGB" if len(self.mean) == 3 else "L")
        except MemoryError:
            raise UsageError(f"{file} does not fit into memory") from None
        except Exception as error:  # each of Pillow's readers raises its own errors
            raise UsageError(f"{file} cannot be read as an image: {error}") from None
        enlarged = round(self.size * 8 / 7) if self.size >= 64 else self.size  # 256 for 224
        scale = enlarged / min(image.size)
        width, height = (max(self.size, round(length * scale)) for length in image.size)
        if width * height > MOST_PIXELS:
            raise UsageError(
                f"{file} is too large for --image-size {self.size}: it would be resized to {width} x {height} pixels"
            )
        image = image.resize((width, height))
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        cut = np.asarray(image.crop((left, top, left + self.size, top + self.size)), dtype=np.float32) / 255
        values = torch.from_numpy(cut.reshape(self.size, self.size, len(self.mean))).permute(2, 0, 1)
        mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (self.mean, self.std))
        return (values - mean) / std
