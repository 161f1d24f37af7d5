"""Zip archives that someone else made: their unpacked size is checked before unpacking."""

from __future__ import annotations

import os
import zipfile

from sparsebit.display import short_bytes
from sparsebit.errors import ArtifactError

_SMALL = 2**28


def require_expansion(path: str | os.PathLike[str], most: float) -> None:
    """Refuse an archive whose unpacked size is more than 256 MB and more than ``most`` times its own."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    packed = os.stat(path).st_size
    if unpacked > max(_SMALL, most * packed):
        raise ArtifactError(
            f"{os.fspath(path)} would grow from {short_bytes(packed)} to {short_bytes(unpacked)} when it is read",
            expected=f"at most {most:g} times its size",
            hint="if the file is genuine, save its arrays uncompressed",
        )
