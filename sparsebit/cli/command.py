"""What a command is, and what it returns."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparsebit.errors import SparsebitError

BLANK = "…"  # in a command to copy: what the user has to fill in


class UsageError(SparsebitError):
    """A mistake in the command line, or in a file that it names."""


def command_to_copy(command: str, *arguments: object, **options: object) -> str:
    """A command line of sparsebit, quoted for the shell. Options that are None are left out, lists are repeated.

    Example:
        >>> print(command_to_copy("export", "net.py:make", weights=None, pruned=["my net; ls"], output="-a"))
        sparsebit export net.py:make --pruned 'my net; ls' --output ./-a
    """
    given = [
        f"--{name.replace('_', '-')} {_quoted(one)}"
        for name, value in options.items()
        for one in (value if isinstance(value, list) else [] if value is None else [value])
    ]
    return " ".join(["sparsebit", command, *map(_quoted, arguments), *given])


def _quoted(value: object) -> str:
    text = str(value)
    if text == BLANK:
        return text
    return shlex.quote(f"./{text}" if text.startswith("-") else text)  # not to be read as an option


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a command: text to print, and plain data for --json.

    ``exit_code`` is 0, or 1 for a finding that should stop a script: a file that does not agree with its model.
    """

    shown: tuple[Any, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


@dataclass(frozen=True)
class Entry:
    """A command's name and summary, for the list of commands; ``load`` imports the command itself."""

    name: str
    help: str
    load: Callable[[], Command]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of the command line, or one action of a command.

    The file of a command imports the library inside ``run``: torch takes seconds to load, and ``--help`` should not.
    """

    description: str
    examples: tuple[str, ...] = ()
    """Complete command lines that work in an empty folder, one after the other; the tests run them."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    run: Callable[[argparse.Namespace], Outcome] = lambda arguments: Outcome()
    check: Callable[[argparse.Namespace], None] = lambda arguments: None
    """Raises an error for mistakes that can be found before torch is loaded, such as in a config."""
    writes: Literal["", "file", "folder", "files"] = ""
    """What --output names: a file, a folder that becomes an artifact, or a folder that files are added to."""
    loads_torch: bool = True
    resume: str = ""
    """What --resume continues; empty for a command without intermediate results, which has no --resume."""
    actions: Mapping[str, Command] = field(default_factory=dict)
    """Its actions; a command with actions has no arguments of its own."""
