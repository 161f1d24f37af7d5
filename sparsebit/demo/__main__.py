"""``python -m sparsebit.demo``: the same as ``sparsebit demo``, without options."""

from __future__ import annotations

import sys
from pathlib import Path

from sparsebit.demo.run import run_demo
from sparsebit.display import as_text


def main() -> None:
    """Run it and print what came out."""
    for part in run_demo(Path("outputs", "demo")).shown():
        sys.stdout.write(f"{as_text(part)}\n")


if __name__ == "__main__":
    main()
