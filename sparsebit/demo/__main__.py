"""``python -m sparsebit.demo``: the same as ``sparsebit demo``, without options."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from sparsebit.demo.run import run_demo


def main() -> None:
    """Run it and print what came out."""
    console = Console()
    for part in run_demo(Path("outputs", "demo")).shown():
        console.print(part)


if __name__ == "__main__":
    main()
