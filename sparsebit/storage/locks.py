"""Locks between processes: the system releases them when a process ends for any reason."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]


class Lock:
    """A lock on a file or folder, with one holder at a time among all processes and threads.

    Attributes:
        busy: whether the last ``take`` failed because another process holds the lock, or has just removed its file. If
        not, the system or the file system has no locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.busy = False
        self._found: int | None = None
        _LOCKS.add(self)

    def take(self) -> bool:
        """Take the lock, without waiting."""
        self.busy = False
        if not sys.platform.startswith(("linux", "darwin")):
            return False
        try:
            self._found = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(self._found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have been removed, and made again, between the two lines above.
            if os.path.samestat(os.fstat(self._found), os.stat(self.path)):
                return True
            self.busy = True
        except (FileNotFoundError, BlockingIOError):
            self.busy = True
        except OSError:  # a file system without locks
            pass
        self.release()
        return False

    @property
    def taken(self) -> bool:
        """Whether this object holds the lock."""
        return self._found is not None

    def release(self) -> None:
        """Release the lock."""
        if self._found is not None:
            os.close(self._found)
            self._found = None

    def __del__(self) -> None:
        self.release()


# A forked process (a worker of a DataLoader) has copies of open files: while it lives, it would hold the locks as well.
_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_LOCKS):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)
