"""Every --help is quick, and its examples work as they stand, in an empty folder, one after the other."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sparsebit.__main__ import main
from sparsebit.cli import COMMANDS
from sparsebit.cli.command import Entry
from tests.cli.conftest import Cli, left_behind

pytest.importorskip("sklearn", reason="the examples use scikit-learn's images")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_examples_work_in_an_empty_folder(cli: Cli, place: Path, entry: Entry) -> None:
    (place / "net.py").unlink()
    assert entry.load().examples
    for line in entry.load().examples:
        program, *words = shlex.split(line)
        assert program == "sparsebit", line
        done = cli(*words)
        assert done.code == 0, f"{line}\n{done.err}"
        assert done.out and "Traceback" not in done.err
    assert words[0] == entry.name and left_behind(place) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["schema", "w4a8"],
        ["quantise"],
        ["compress", "--help"],
        ["quantize", "gone.py:net", "--data", "x.npz", "-o", "out"],
        ["quantize", "sparsebit.demo:net", "--data", "sparsebit.demo:data", "--config", "int9", "-o", "out"],
        ["prune", "sparsebit.demo:net", "--set", "SPARSER.RATIOO=1", "-o", "out"],
        ["bench", "gone.onnx"],
        ["profile", "sparsebit.demo:net", "--quantized", "gone", "--data", "gone.npz"],
    ],
)
def test_what_needs_no_torch_does_not_wait_for_it(words: list[str]) -> None:
    program = (
        "import sys\nfrom sparsebit.__main__ import main\n"
        f"try: code = main({words!r})\nexcept SystemExit as stop: code = stop.code\n"
        "assert code in (0, 2), code\n"
        "sys.exit(' '.join({'torch', 'numpy', 'onnx'} & set(sys.modules)) or None)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_help_teaches(entry: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    name, command = entry.name, entry.load()
    for words in ([name], *([name, action] for action in command.actions)):
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        text = capsys.readouterr().out
        assert stop.value.code == 0 and f"sparsebit {' '.join(words)}" in text
        if words == [name]:
            assert "example" in text and all(line in text for line in (*command.examples, *command.actions))
        if words != [name] or not command.actions:
            assert "--json" in text and "--debug" in text
            assert ("--resume" in text) == (words in (["quantize"], ["compress"]))


def test_the_first_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for name in (*(entry.name for entry in COMMANDS), "demo"):
        assert f"    {name} " in text
