"""Text files: written completely or not at all, and read within limits."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from sparsebit.errors import SparsebitError


def require_file(path: str | os.PathLike[str]) -> Path:
    """The place for a file, after making sure that it can go there: to be asked before hours of work."""
    place = Path(path)
    if place.is_dir():
        raise SparsebitError(f"cannot write {place}: it is a folder", hint="name a file in it")
    above = next(parent for parent in place.absolute().parents if parent.exists())
    if not above.is_dir():
        raise SparsebitError(f"cannot write {place}: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise SparsebitError(f"cannot write {place}: no permission to write in {above}")
    return place


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a file under another name beside its place and move it there; returns the path.

    Folders above it are created. What stood there is replaced only when all of the new text is on disk.
    """
    place = Path(path)
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        place.absolute().parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, place)
    except OSError as error:
        raise SparsebitError(f"cannot write {place}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return place


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The text of a regular file of at most ``most`` bytes; ``OSError`` or ``UnicodeDecodeError`` otherwise.

    A pipe or a device is refused before it is opened, because reading it could wait for ever.
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
        raise OSError(errno.EINVAL, "the name cannot be that of a file", os.fspath(path)) from None
    mode = os.fstat(found).st_mode
    if not stat.S_ISREG(mode):
        os.close(found)
        code, reason = (
            (errno.EISDIR, "it is a folder") if stat.S_ISDIR(mode) else (errno.EINVAL, "not a file")
        )
        raise OSError(code, reason, os.fspath(path))
    return os.fdopen(found, "rb")
