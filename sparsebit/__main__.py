"""``sparsebit`` and ``python -m sparsebit``: the entry point, which adds the demo to the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(words: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    try:  # loading may be interrupted too
        from sparsebit import __version__
        from sparsebit.cli import COMMANDS, run
        from sparsebit.cli.command import Entry

        demo = Entry("demo", "prune, quantize, export and run a small network on real images", _demo_command)
        return run(words, (*COMMANDS, demo), version=__version__)
    except KeyboardInterrupt:
        return 130


def _demo_command() -> Any:
    from sparsebit.cli.demo import make_command

    return make_command(_demo)


def _demo(folder: Path, *, train: bool) -> Any:
    from sparsebit.demo.run import run_demo

    return run_demo(folder, train=train)


if __name__ == "__main__":
    sys.exit(main())
