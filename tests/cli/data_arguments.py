"""The arguments of a command that takes data and inputs."""

from __future__ import annotations

import argparse

from sparsebit.cli.arguments import add_data, add_input


def arguments(*words: str) -> argparse.Namespace:
    """What a command line with these words says."""
    parser = argparse.ArgumentParser()
    add_data(parser, required=False)
    add_input(parser)
    return parser.parse_args(words)
