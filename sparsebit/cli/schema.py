"""``sparsebit schema``: the keys and values that a config file may contain."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from sparsebit.cli.arguments import add_output
from sparsebit.cli.command import Command, Outcome
from sparsebit.storage import write_text

SCHEMAS = ("quantization", "pruning", "llm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit schema``."""
    presets = preset_texts()
    parser.add_argument(
        "what",
        choices=(*SCHEMAS, *presets),
        nargs="?",
        default="quantization",
        metavar="WHAT",
        help=f"{', '.join(SCHEMAS)} for a schema; {', '.join(presets)} for the YAML of a preset",
    )
    add_output(parser, "file to write instead of printing", required=False)


def preset_texts() -> dict[str, Callable[[str], str]]:
    """The functions that read the YAML of each preset, by name; presets of language models come last."""
    from sparsebit.config import QConfig
    from sparsebit.config.llm import LlmConfig

    return {name: kind.preset_text for kind in (QConfig, LlmConfig) for name in kind.preset_names()}


def run(arguments: argparse.Namespace) -> Outcome:
    """Print the schema or preset, or write it to a file."""
    from sparsebit.config import QConfig, SConfig, schema_text
    from sparsebit.config.llm import LlmConfig

    kinds = dict(zip(SCHEMAS, (QConfig, SConfig, LlmConfig), strict=True))
    what = arguments.what
    is_schema = what in kinds
    text = schema_text(kinds[what]) if is_schema else preset_texts()[what](what)
    key = "schema" if is_schema else "yaml"
    data = {"what": what, key: json.loads(text) if is_schema else text, "output": arguments.output}
    if arguments.output:
        write_text(arguments.output, text)
        return Outcome(shown=(f"written: {arguments.output}",), data=data)
    return Outcome(shown=(text.rstrip("\n"),), data=data)


COMMAND = Command(
    description="""
Print the JSON schema of a config file, which editors use for completion and checking, or a preset
as YAML, as a start for your own file.
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
