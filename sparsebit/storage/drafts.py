"""Files on their way into a folder, and what is left of them when a process was killed."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Set
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover  # Windows: nothing is locked there, and nothing swept
    fcntl = None  # type: ignore[assignment]

DRAFT = re.compile(r"\.sparsebit-[0-9a-f]{16}\.draft")


class Locked:
    """A lock on a file or folder, that a process holds until it ends: others leave what is locked alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: int | None = None

    def take(self) -> bool:
        """Take it; False where another process holds it, or where there are no locks."""
        if not sys.platform.startswith(("linux", "darwin")):  # there are no locks to take
            return False
        self._found = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            fcntl.flock(self._found, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Give it back."""
        if self._found is not None:
            os.close(self._found)
            self._found = None


class Draft:
    """A file under a hidden name, locked for as long as this process needs it: others leave it alone."""

    def __init__(self, folder: Path, opened: list[Draft]) -> None:
        self.path = folder / f".sparsebit-{secrets.token_hex(8)}.draft"
        opened.append(self)  # before the file is made: an interrupt may come between any two lines
        self.file = self.path.open("xb")
        if fcntl is not None:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def finish(self, name: str) -> Path:
        """Bring the bytes to the disk and give the file its name. It stays locked until ``close``."""
        self.file.flush()
        os.fsync(self.file.fileno())
        os.replace(self.path, self.path.with_name(name))
        return self.path.with_name(name)

    def close(self) -> None:
        """Release the file, and remove it where it was not finished."""
        with contextlib.suppress(OSError, AttributeError):
            self.file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def sweep(folder: Path, names: re.Pattern[str], in_use: Callable[[], Set[str]]) -> None:
    """Remove drafts (files or folders) of processes that are gone, and files of these names that are not in use.

    Whether a file is in use is asked after its lock was taken: a process that still holds it may be about to use it.
    """
    if not sys.platform.startswith(("linux", "darwin")):  # there are no locks to ask
        return
    for path in list(folder.iterdir()):
        if not (DRAFT.fullmatch(path.name) or names.fullmatch(path.name)) or path.name in in_use():
            continue
        lock = Locked(path)
        with contextlib.suppress(OSError):
            if lock.take() and path.name not in in_use():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        lock.release()
