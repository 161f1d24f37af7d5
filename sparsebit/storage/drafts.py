"""Unfinished files in a folder, and their removal after a process was killed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Self

from sparsebit.errors import ArtifactError
from sparsebit.storage.locks import Lock
from sparsebit.storage.place import require_new, writing

DRAFT = re.compile(r"\.sparsebit-[0-9a-f]{16}\.draft")
TRIES = 5


class Draft:
    """A file under a hidden name, locked as long as this process needs it, so that others do not remove it."""

    def __init__(self, folder: Path, opened: list[Draft]) -> None:
        opened.append(self)  # before the file is made: an interrupt may come between any two lines
        while True:
            self.path = folder / f".sparsebit-{secrets.token_hex(8)}.draft"
            self._lock = Lock(self.path)
            self.file = self.path.open("xb")
            if self._lock.take() or not self._lock.busy:
                return
            self.file.close()  # another process removed it before it was locked

    def finish(self, name: str) -> Path:
        """Flush the bytes to disk and give the file its name. It stays locked until ``close``."""
        self.file.flush()
        os.fsync(self.file.fileno())
        os.replace(self.path, self.path.with_name(name))
        return self.path.with_name(name)

    def close(self) -> None:
        """Release the file, and remove it if it was not finished."""
        with contextlib.suppress(OSError, AttributeError):
            self.file.close()
        with contextlib.suppress(OSError, AttributeError):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(AttributeError):
            self._lock.release()


class FolderDraft:
    """A hidden folder beside a destination, in which its content is written; one process at a time per destination.

    Its remaining content is removed when the block ends; that of a killed process, by the next draft beside it.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        digest = hashlib.sha256(os.fsencode(place.name)).hexdigest()
        self.folder = place.with_name(f".sparsebit-{digest[:16]}.draft")
        self._lock = Lock(self.folder)

    def __enter__(self) -> Self:
        sweep(self.place.parent, DRAFT, frozenset)
        try:
            for _ in range(TRIES):
                with writing(self.place):
                    self.folder.mkdir(exist_ok=True)
                if self._lock.take() or not self._lock.busy:
                    return self
                time.sleep(0.02)  # another process may be sweeping: it has an unlocked folder for an instant
        except BaseException:  # an interrupt may come right after it was made
            if self._lock.taken:
                self.__exit__()
            raise
        raise ArtifactError(
            f"another run is writing {self.place}", hint="wait until it has ended, or choose another name"
        )

    @property
    def file(self) -> Path:
        """Where the file or folder is until it is moved to its place."""
        return self.folder / self.place.name

    def move_to_place(self) -> None:
        """Flush the content to disk, and move it to its place in one step."""
        with writing(self.place):
            for path in (self.file, *self.file.rglob("*")):
                if path.is_file():
                    sync(path)
            os.replace(self.file, self.place)

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()


@contextlib.contextmanager
def new_place(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where to write a new file or folder; when the block ends, it is moved to its place in one step.

    Folders above it are created. If the place exists already, an error is raised, before and after the lock is taken:
    another run may just have written it.
    """
    place = require_new(path)
    with writing(place):
        place.absolute().parent.mkdir(parents=True, exist_ok=True)
    with FolderDraft(place) as draft:
        require_new(place)
        yield draft.file
        draft.move_to_place()


def sweep(folder: Path, names: re.Pattern[str], in_use: Callable[[], Set[str]]) -> None:
    """Remove drafts (files or folders) of processes that have ended, and files of these names that are not in use.

    Whether a file is in use is checked after its lock was taken: a process that still holds it may be about to use it.
    """
    for path in list(folder.iterdir()):
        if not (DRAFT.fullmatch(path.name) or names.fullmatch(path.name)) or path.name in in_use():
            continue
        lock = Lock(path)
        with contextlib.suppress(OSError):
            if lock.take() and path.name not in in_use():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        lock.release()


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    found = os.open(path, os.O_RDONLY)
    try:
        os.fsync(found)
    finally:
        os.close(found)
