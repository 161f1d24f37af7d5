"""``sparsebit demo``: all steps on real images. The demo is in a higher layer, which passes it to this package."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsebit.cli.command import Command, Outcome


def make_command(demo: Callable[..., Any]) -> Command:
    """The command around ``demo(folder, train=...)``, whose result is a dataclass with ``shown()``."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        place = Path("outputs", "demo")
        parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, default=place, help=f"({place})")
        parser.add_argument(
            "--train", action="store_true", help="train from scratch; by default trained weights are loaded"
        )

    def run(arguments: argparse.Namespace) -> Outcome:
        from sparsebit.storage.typed import to_plain

        result = demo(arguments.output, train=arguments.train)
        return Outcome(shown=tuple(result.shown()), data=to_plain(result))

    return Command(
        description="""
Take a small network that reads handwritten digits, prune it, quantize it to int8, export it, run
the file in ONNX Runtime, and show accuracy, size, latency and agreement in one table. Also writes
report.html. Needs scikit-learn: pip install -e ".[demo]" in the source folder.
""",
        examples=("sparsebit demo --output digits-demo",),
        add_arguments=add_arguments,
        run=run,
        writes="files",
    )
