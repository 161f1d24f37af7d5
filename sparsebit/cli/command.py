"""What a command is, and what it hands back."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsebit.errors import SparsebitError


class UsageError(SparsebitError):
    """A mistake in what was typed, or in the files it names."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a command: for people something to print, for machines plain data.

    ``exit_code`` is 0, or 1 for a finding that should stop a script: a file that does not agree with its model.
    """

    shown: tuple[Any, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class Command:
    """One word of the command line.

    A file of a command imports what it works with in ``run``: torch takes seconds to load, and asking for help should
    not.
    """

    name: str
    help: str
    description: str
    examples: tuple[str, ...]
    """Whole command lines that work as they stand in an empty folder, one after the other; the tests run them."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Outcome]
    check: Callable[[argparse.Namespace], None] = lambda arguments: None
    """Refuses what can be known to be wrong before torch is loaded: configs, and places to write to."""
    loads_torch: bool = True
    resume: str = ""
    """What --resume goes on with; empty for a command that keeps nothing in between, which has no --resume."""
