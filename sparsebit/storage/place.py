"""Checks whether something can be written, made before hours of work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsebit.display import short_bytes
from sparsebit.errors import ArtifactError, with_article


def require_name(path: str | os.PathLike[str]) -> Path:
    """A path whose names are valid for every later step."""
    if not isinstance(path, str | os.PathLike):
        raise ArtifactError("the place to write to is not a path", got=with_article(type(path).__name__))
    place = Path(path)
    if "\0" in str(place):
        raise ArtifactError(f"cannot write {str(place)!r}: its name contains a NUL character")
    if not place.name:  # "", "." or "/"
        raise ArtifactError(
            f"the place to write to has no name: {os.fspath(path)!r}", hint="name a file or folder"
        )
    above = existing_parent(place)
    try:
        most = os.pathconf(above, "PC_NAME_MAX")
    except (OSError, ValueError, AttributeError):
        most = 255
    if longest := next((part for part in place.parts if len(os.fsencode(part)) > most), None):
        raise cannot_write(place, f"the name {longest[:20]!r}... is longer than {most} bytes")
    return place


def require_writable(place: Path) -> Path:
    """The nearest existing folder, in which the place can be created."""
    above = existing_parent(place)
    if not above.is_dir():
        raise cannot_write(place, f"{above} is a file")
    inside = place if place.is_dir() else above
    if not os.access(inside, os.W_OK | os.X_OK):
        raise cannot_write(place, f"no permission to write in {inside}")
    return inside


def require_room(place: Path, above: Path, needs: int) -> None:
    """Raise an error if the disk does not have enough free space."""
    if needs > 0:
        free = shutil.disk_usage(above).free
        if needs > free:
            raise cannot_write(place, f"it needs {short_bytes(needs)}, and {short_bytes(free)} are free")


def require_file(path: str | os.PathLike[str], needs: int = 0) -> Path:
    """The place for a file, after checking that it can be written; ``needs`` is the number of bytes it will take."""
    place = require_name(path)
    if place.is_dir():
        raise ArtifactError(f"cannot write {place}: it is a folder", hint="name a file in it")
    if place.exists() and not place.is_file():  # a device, a pipe: writing moves a new file over it
        raise ArtifactError(f"cannot write {place}: it is not a regular file", hint="name a file")
    require_room(place, require_writable(place), needs)
    return place


def require_new(path: str | os.PathLike[str]) -> Path:
    """The place for a file or folder that does not exist yet; an empty folder is allowed."""
    place = require_name(path)
    if place.is_dir() and any(place.iterdir()):
        raise ArtifactError(f"{place} exists and contains files", hint="choose a new or an empty folder")
    if place.exists() and not place.is_dir():
        raise ArtifactError(f"{place} exists already", hint="choose a new name")
    require_writable(place)
    return place


@contextmanager
def writing(place: Path, *also: type[Exception]) -> Iterator[None]:
    """System errors inside the block (and errors of the types in ``also``) are raised as our errors."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, (OSError, *also)):
            raise
        reason = error.strerror if isinstance(error, OSError) else None
        raise cannot_write(place, reason or str(error)) from None


def existing_parent(place: Path) -> Path:
    """The nearest folder or file above a place that exists."""
    for parent in place.absolute().parents:
        try:
            if parent.exists():
                return parent
        except OSError:  # a name that is too long
            continue
    return Path("/")


def cannot_write(place: Path, reason: str) -> ArtifactError:
    """The error for a place that cannot be written."""
    return ArtifactError(
        f"cannot write {place}: {reason}",
        hint="choose a place with enough free space; nothing was changed",
    )
