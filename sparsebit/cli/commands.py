"""The commands, in the order a model meets them."""

from __future__ import annotations

from sparsebit.cli import bench, capture, check, compress, export, llm, profile, prune, quantize, schema
from sparsebit.cli.command import Command

COMMANDS: tuple[Command, ...] = (
    capture.COMMAND,
    compress.COMMAND,
    prune.COMMAND,
    quantize.COMMAND,
    profile.COMMAND,
    export.COMMAND,
    check.COMMAND,
    bench.COMMAND,
    llm.COMMAND,
    schema.COMMAND,
)
