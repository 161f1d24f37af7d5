"""Other processes that hold something until a test lets them go on: no test depends on who is faster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sys
from sparsebit.storage import working_in
with working_in(sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.readline()
"""


class Other:
    """A process that has said ``ready`` and waits."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def finish(self) -> None:
        """Let it go on to its end, which must be a good one."""
        self.process.communicate("\n")
        assert self.process.returncode == 0

    def kill(self) -> None:
        """End it as the system does when memory is short."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def held_by_another(folder: Path) -> Iterator[None]:
    """Another process works in the folder."""
    other = Other(_HOLD, folder)
    try:
        yield
    finally:
        other.kill()
