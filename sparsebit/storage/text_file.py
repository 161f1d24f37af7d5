"""A text file written whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

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
