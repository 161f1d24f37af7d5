"""The command line: one file per command, each of which parses, calls the library, and shows the result."""

from sparsebit.cli.command import Command, Entry, Outcome
from sparsebit.cli.commands import COMMANDS
from sparsebit.cli.main import run

__all__ = ["COMMANDS", "Command", "Entry", "Outcome", "run"]
