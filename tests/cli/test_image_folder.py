"""Images as batches, and what cannot be read as one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit.cli.command import UsageError
from sparsebit.cli.data import (
    open_data,
)
from sparsebit.cli.image_folder import ImageFolder
from tests.cli.data_arguments import arguments


def test_a_folder_of_images_has_its_classes(place: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        Path("images", kind).mkdir(parents=True)
        for index in range(3):
            color = (255, 0, 0) if kind == "cat" else (0, 0, 255)
            image.new("RGB", (20, 30), color).save(Path("images", kind, f"{index}.png"))
    words = (
        "--data",
        "images",
        "--image-size",
        "16",
        "--batch-size",
        "4",
        "--mean",
        "0",
        "0",
        "0",
        "--std",
        "1",
        "1",
        "1",
    )
    batches: list[Any] = list(open_data(arguments(*words)))
    assert [tuple(x.shape) for x, _ in batches] == [(4, 3, 16, 16), (2, 3, 16, 16)]
    images, labels = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    assert torch.equal(images[:, 0].amax((1, 2)), (labels == 0).float())  # red ones are cats
    grey = open_data(arguments(*words[:6], "--mean", "0.5", "--std", "0.5"))
    assert next(iter(grey))[0].shape[1] == 1


def test_bad_images_are_refused(place: Path) -> None:
    pytest.importorskip("PIL")
    Path("images").mkdir()
    with pytest.raises(UsageError, match="no images in images"):
        open_data(arguments("--data", "images"))
    Path("images", "a.png").write_text("no image")
    with pytest.raises(UsageError, match="cannot be read as an image"):
        open_data(arguments("--data", "images"))
    with pytest.raises(UsageError, match="one number for grey"):
        open_data(arguments("--data", "images", "--mean", "0", "0"))


def test_images_that_would_become_others_are_refused(place: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    Path("images", "cat").mkdir(parents=True)
    Path("images", ".thumbnails").mkdir()  # not a class, which would be the first
    image.new("L", (8, 8)).save("images/cat/a.png")
    words = arguments("--data", "images", "--image-size", "8")
    assert next(iter(open_data(words)))[1].tolist() == [0]
    image.new("L", (8, 8)).save("images/b.png")
    with pytest.raises(UsageError, match="images beside folders"):
        open_data(words)
    Path("images/b.png").unlink()
    image.new("I;16", (8, 8)).save("images/cat/a.png")
    with pytest.raises(UsageError, match="more than 8 bits"):
        open_data(words)
    image.new("L", (1, 20000)).save("images/cat/a.png")
    with pytest.raises(UsageError, match="would be resized to 256 x 5120000 pixels"):
        open_data(arguments("--data", "images"))


def test_an_image_that_is_a_bomb_a_pipe_or_damaged(place: Path) -> None:
    from PIL import Image

    Path("images").mkdir()
    reader = ImageFolder(Path("images"), 1, 8, (0.0,), (1.0,))
    Image.new("1", (20_000, 10_000)).save("images/a.png")
    with pytest.raises(UsageError, match=r"a.png cannot be read as an image: Image size"):
        next(iter(reader))
    Path("images/a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40)
    with pytest.raises(UsageError, match=r"a.png cannot be read as an image"):
        next(iter(reader))
    Path("images/a.png").unlink()
    os.mkfifo("images/a.png")
    with pytest.raises(UsageError, match=r"a.png cannot be read as an image"):
        next(iter(reader))
