"""What every command says of itself."""

from __future__ import annotations

import argparse

import pytest

from sparsebit.cli import COMMANDS
from sparsebit.cli.command import Command, Entry, Outcome


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_a_command_describes_itself_and_its_examples_start_with_its_name(entry: Entry) -> None:
    command = entry.load()
    assert command.description.strip() and command.examples
    assert any(example.startswith(f"sparsebit {entry.name} ") for example in command.examples)
    for one in command.actions.values() or [command]:
        parser = argparse.ArgumentParser()
        one.add_arguments(parser)
        named = {action.dest for action in parser._actions}
        assert one.description.strip() and (not one.writes or "output" in named)


def test_an_outcome_and_a_command_need_little() -> None:
    command = Command(description="")
    command.check(argparse.Namespace())  # refuses nothing unless it is told to
    assert command.run(argparse.Namespace()) == Outcome(shown=(), data={}, exit_code=0)
