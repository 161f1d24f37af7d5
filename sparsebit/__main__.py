"""``sparsebit`` and ``python -m sparsebit``: where the command line and the demo meet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    try:  # torch takes a moment to load, and may be interrupted too
        from sparsebit.cli import COMMANDS, run
        from sparsebit.cli.demo import make_command
    except KeyboardInterrupt:
        return 130
    return run(words, (*COMMANDS, make_command(_demo)))


def _demo(folder: Path, *, train: bool) -> Any:
    from sparsebit.demo.run import run_demo

    return run_demo(folder, train=train)


if __name__ == "__main__":
    sys.exit(main())
