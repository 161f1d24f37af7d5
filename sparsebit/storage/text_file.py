"""Text files: written completely or not at all, and read within limits."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from sparsebit.storage.drafts import DRAFT, Draft, sweep
from sparsebit.storage.place import cannot_write, require_file


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file in UTF-8, as ``write_bytes`` does; returns the path."""
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file under another name beside its place and move it there; returns the path.

    Folders above it are created. An existing file is replaced only after all new data is on disk. A symbolic link
    is followed.
    """
    place = require_file(path)
    real = place.resolve() if place.is_symlink() else place
    drafts: list[Draft] = []
    try:
        real.absolute().parent.mkdir(parents=True, exist_ok=True)
        sweep(real.absolute().parent, DRAFT, frozenset)  # of writes that were killed
        draft = Draft(real.absolute().parent, drafts)
        draft.file.write(data)
        draft.finish(real.name)
    except OSError as error:
        raise cannot_write(place, error.strerror or str(error)) from None
    finally:
        for draft in drafts:
            draft.close()
    return place


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The text of a regular file of at most ``most`` bytes; ``OSError`` or ``UnicodeDecodeError`` otherwise.

    A pipe or a device is refused before it is opened, because reading it could wait forever.
    """
    return read_bytes(path, most).decode("utf-8")


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a regular file, under the same limits."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", os.fspath(path))
    return data


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """An open file for reading; never a pipe, a socket or a device."""
    try:
        found = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "this is not a valid file name", os.fspath(path)) from None
    mode = os.fstat(found).st_mode
    if not stat.S_ISREG(mode):
        os.close(found)
        code, reason = (
            (errno.EISDIR, "it is a folder") if stat.S_ISDIR(mode) else (errno.EINVAL, "not a file")
        )
        raise OSError(code, reason, os.fspath(path))
    return os.fdopen(found, "rb")
