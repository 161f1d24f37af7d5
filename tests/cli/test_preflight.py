"""What is named and not there is told before torch is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

DATA = ("--data", "net.py:batches")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("capture", "nett.py:make"), "no such file: nett.py"),
        (("capture", "net.py:mak"), "did you mean 'make'?"),
        (("capture", "net.py"), "say which object in the file: net.py:name"),
        (("quantize", "net.py:make", "--data", "photos/", "-o", "x"), "no such data: photos/"),
        (("quantize", "net.py:make", "--data", "net.py", "-o", "x"), "net.py cannot be read as data"),
        (("quantize", "net.py:make", *DATA, "--test", "gone.npz", "-o", "x"), "no such file: gone.npz"),
        (
            ("quantize", "net.py:make", *DATA, "--metric", "net.py:first_logits", "-o", "x"),
            "did you mean 'first_logit'?",
        ),
        (("export", "net.py:make", "--quantized", "int8", "-o", "x"), "no such folder: int8"),
        (("export", "net.py:make", "--quantized", ".", "-o", "x"), ". is not a saved model"),
        (("bench", "gone.onnx"), "no such file: gone.onnx"),
        (("check", "gone.onnx", "net.py:make"), "no such file: gone.onnx"),
        (("check", "net.py:make", "float.onnx"), "next:     sparsebit check float.onnx net.py:make"),
        (("capture", "net.py:make", "--resume"), "unknown arguments: --resume"),
        (("export", "net.py:make", "-o", "."), "has no name"),
        (("quantize", "net.py:make", *DATA, "-o", ""), "has no name"),
        (("quantize", "net.py:make", *DATA, "-o", "x", "--image-size", "64"), "--image-size is for folders"),
        (("capture", "net.py:make", "--batches", "2"), "--batches is for data only"),
        (("quantize", "net.py:make", *DATA, "-o", "net.py"), "net.py is a file"),
        (("compress", "net.py:make", *DATA, "-o", "net.py"), "net.py is a file"),
        (("demo", "-o", "net.py"), "net.py is a file"),
        (("quantize", "net.py:make", *DATA, "-o", "x", "--report", "x"), "--report and --output both name x"),
    ],
)
def test_typos_are_told_at_once(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("sparsebit.cli.main.waiting", _never)  # it is what loads torch
    done = cli(*words)
    assert done.code == 2 and message in done.err, done
    assert not Path("x").exists()


LONG = {
    "export": (),
    "prune": (),
    "quantize": DATA,
    "compress": DATA,
}


@pytest.mark.parametrize("command", LONG)
@pytest.mark.parametrize(
    ("free", "message"), [(0, "it needs 1 B, and 0 B are free"), (9, "and 9 B are free")]
)
def test_a_full_disk_is_told_before_the_work(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, command: str, free: int, message: str
) -> None:
    """A disk with no room at all before torch is loaded; one with too little for the model once it is known."""
    usage = type(shutil.disk_usage("."))(1, 1, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr("sparsebit.cli.preflight.LEAST", 1)
    if not free:
        monkeypatch.setattr("sparsebit.cli.main.waiting", _never)
    monkeypatch.setattr("sparsebit.cli.data.example_inputs", _never)  # what comes before all work
    done = cli(command, "net.py:make", *LONG[command], "-o", "x")
    assert done.code == 2 and "cannot write x" in done.err and message in done.err, done
    assert not Path("x").exists()


def _never(*_: object) -> None:
    raise AssertionError("torch was loaded")


def test_names_that_a_file_makes_by_itself_are_not_doubted(cli: Cli, place: Path) -> None:
    Path("made.py").write_text("from net import Net\nglobals()['ma' + 'de'] = Net\n")
    assert cli("capture", "made.py:made", "--input", "2x3x8x8").code == 0


def test_several_processes_of_torchrun_are_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = cli("schema")
    assert done.code == 2 and "commands run in one process" in done.err
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert cli("schema").code == 0
