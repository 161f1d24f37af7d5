"""``sparsebit schema``: what may stand in a config file."""

from __future__ import annotations

import argparse
import json

from sparsebit.cli.arguments import add_output
from sparsebit.cli.command import Command, Outcome
from sparsebit.storage import write_text

SCHEMAS = ("quantization", "pruning")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit schema``."""
    from sparsebit.config import preset_names

    parser.add_argument(
        "what",
        choices=(*SCHEMAS, *preset_names()),
        nargs="?",
        default="quantization",
        metavar="WHAT",
        help=f"{', '.join(SCHEMAS)} for a schema; {', '.join(preset_names())} for the YAML of a preset",
    )
    add_output(parser, "file to write instead of printing", required=False)


def run(arguments: argparse.Namespace) -> Outcome:
    """Print it, or write it."""
    from sparsebit.config import QConfig, SConfig, preset_text, schema_text

    kinds = dict(zip(SCHEMAS, (QConfig, SConfig), strict=True))
    is_schema = arguments.what in kinds
    text = schema_text(kinds[arguments.what]) if is_schema else preset_text(arguments.what)
    key = "schema" if is_schema else "yaml"
    data = {"what": arguments.what, key: json.loads(text) if is_schema else text, "output": arguments.output}
    if arguments.output:
        write_text(arguments.output, text)
        return Outcome(shown=(f"written: {arguments.output}",), data=data)
    return Outcome(shown=(text.rstrip("\n"),), data=data)


COMMAND = Command(
    description="""
Print the JSON schema of a config file, which editors use for completion and checking, or a preset
as YAML to start a file of your own from.
""",
    examples=(
        "sparsebit schema pruning --output sconfig.schema.json",
        "sparsebit schema w4a8 --output mine.yaml",
    ),
    add_arguments=add_arguments,
    run=run,
    loads_torch=False,
    writes="file",
)
