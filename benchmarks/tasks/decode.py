"""Images out of archives, decoded once per process and kept in memory as bytes."""

from __future__ import annotations

import functools
import io
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy
import torch
from numpy.lib import format as npy
from torch import Tensor

from benchmarks.tasks.progress import track

CHUNK_BYTES = 1 << 20


@functools.lru_cache(maxsize=8)
def read_array(path: Path, member: str, count: int | None = None) -> Tensor:
    """One array of an ``.npz``, or its first ``count`` rows without unpacking the rest.

    ``numpy.load`` would unpack the whole archive member before the first row can be used, for seconds.
    """
    with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as file:
        version = npy.read_magic(file)
        shape, fortran, dtype = (
            npy.read_array_header_1_0(file) if version == (1, 0) else npy.read_array_header_2_0(file)
        )
        if fortran or dtype.hasobject:
            raise ValueError(f"{path}: {member}: expected a plain C-ordered array, got {dtype}")
        rows = shape[0] if count is None else min(count, shape[0])
        total = rows * math.prod(shape[1:]) * dtype.itemsize
        data = bytearray(total)
        for start in track(range(0, total, CHUNK_BYTES), f"reading {path.name}"):
            want = min(CHUNK_BYTES, total - start)
            data[start : start + want] = _read_exactly(file, want)
    return torch.from_numpy(numpy.frombuffer(data, dtype).reshape(rows, *shape[1:]))


def _read_exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    while len(data) < count:
        more = file.read(count - len(data))
        if not more:
            raise EOFError(f"the array ends {count - len(data)} bytes early")
        data += more
    return data


@functools.lru_cache(maxsize=8)
def list_members(path: Path, prefix: str = "", suffix: str = ".jpg") -> tuple[str, ...]:
    """The names inside a zip archive that start and end so, sorted."""
    with zipfile.ZipFile(path) as archive:
        return tuple(sorted(n for n in archive.namelist() if n.startswith(prefix) and n.endswith(suffix)))


@functools.lru_cache(maxsize=8)
def read_images(path: Path, members: tuple[str, ...], size: tuple[int, int] | None = None) -> Tensor:
    """Images of one size from a zip archive, as they are stored or resized (bilinear) to (width, height).

    Returns uint8 [N, H, W, 3] RGB, or [N, H, W] for images without colour.
    """
    return torch.from_numpy(numpy.stack(list(_decoded(path, members, size))))


def _decoded(
    path: Path, members: tuple[str, ...], size: tuple[int, int] | None
) -> Iterator[numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint8]]]:
    from PIL import Image

    with zipfile.ZipFile(path) as archive:
        for member in track(members, f"decoding {path.name}"):
            image: Image.Image = Image.open(io.BytesIO(archive.read(member)))
            if image.mode not in ("L", "P"):
                image = image.convert("RGB")
            if size is not None:
                image = image.resize(size, Image.Resampling.BILINEAR)
            yield numpy.asarray(image)
