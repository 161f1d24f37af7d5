"""Every example of every --help works as it stands, in an empty folder, one after the other."""

from __future__ import annotations

import shlex

import pytest

from sparsebit.__main__ import main
from sparsebit.cli import COMMANDS
from tests.cli.conftest import Cli, left_behind

pytest.importorskip("sklearn", reason="the examples use scikit-learn's images")


def test_examples_of_every_command_work(cli: Cli, place: object, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue("tmp_path")
    (folder / "net.py").unlink()
    for command in COMMANDS:
        assert command.examples, command.name
        for line in command.examples:
            program, *words = shlex.split(line)
            assert program == "sparsebit" and words[0] == command.name, line
            done = cli(*words)
            assert done.code == 0, f"{line}\n{done.err}"
            assert done.out and "Traceback" not in done.err
    assert left_behind(folder) == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_teaches(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    name = command.name  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"sparsebit {name}" in text and "example" in text and "--json" in text and "--debug" in text
    for line in command.examples:  # type: ignore[attr-defined]
        assert line in text


def test_the_first_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for name in (*(command.name for command in COMMANDS), "demo"):
        assert f"    {name} " in text
