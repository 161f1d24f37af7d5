"""``sparsebit quantize``: what is refused before the work, and what goes on after an interrupt."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sparsebit.__main__ import main
from sparsebit.quantization import QuantModel
from sparsebit.quantization.observers import OBSERVERS
from tests.cli.conftest import Cli, left_behind

DATA = ("--data", "net.py:batches")


@pytest.mark.parametrize(
    ("output", "message"),
    [("q", "it needs .* kB, and 0 B are free"), ("n" * 252, "longer than 255 bytes")],
)
def test_a_place_without_room_is_refused_before_the_work(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
    message: str,
) -> None:
    usage = type(shutil.disk_usage("."))(1, 1, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(QuantModel, "calibrate", lambda *_, **__: pytest.fail("the work was begun"))
    words = ["quantize", "sparsebit.demo:net", "--data", "sparsebit.demo:training_data", "-o", output]
    assert main(words) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--config", "int9"), "no such preset or file"),
        (("--set", "W.QUANTIZER.BITT=4"), "did you mean 'BIT'?"),
        (("--set", "W.QUANTIZER.BIT"), "KEY=VALUE"),
        (("--weights", "gone.pt"), "no such weights file"),
        (("--pruned", "gone"), "no such folder: gone"),
        (("--batches", "0"), "expected 1 or more"),
        (("--frobnicate",), "sparsebit quantize --help"),
        (("--set", "DEVICE=tpu"), "device 'tpu' is not available"),
        (("--report", "net.py/r.html"), "is a file"),
        (("--report", "out"), "both name out"),
        (("--metric", "net.py:first_logit"), "add --test DATA"),
        (("--test", "net.py:batches", "--metric", "net.py:words"), "is not a function"),
        (("--test", "net.py:batches", "--metric", "net.py:no_number"), "could not convert string to float"),
        (("--test", "net.py:batches", "--metric", "net.py:not_a_number"), "the metric is NaN"),
        (("--test", "net.py:foreign_labels"), "label 9 is out of range"),
        (("--test", "net.py:too_few_labels"), "labels do not fit the outputs"),
    ],
)
def test_mistakes_are_told_before_any_work(
    cli: Cli, place: Path, words: tuple[str, ...], message: str
) -> None:
    done = cli("quantize", "net.py:make", *DATA, "-o", "out", *words)
    assert done.code == 2 and message in done.err and done.out == ""
    assert not Path("out").exists() and left_behind(place) == []


def test_a_folder_with_other_things_is_left_alone(cli: Cli, place: Path) -> None:
    Path("mine").mkdir()
    Path("mine", "thesis.txt").write_text("years of work")
    done = cli("quantize", "net.py:make", *DATA, "-o", "mine")
    assert done.code == 2 and "contains other files" in done.err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]


def test_long_recovery_goes_on_where_it_stopped(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "quantize",
        "net.py:make",
        *DATA,
        "--config",
        "w4a8",
        "--set",
        "SCHEDULE.RECOVERY=[{adaround: {steps: 5}}]",
    )
    save = QuantModel.save
    monkeypatch.setattr(QuantModel, "save", _interrupted)
    assert cli(*words, "-o", "out").code == 130
    assert not Path("out").exists() and Path(".out.steps").is_dir()
    monkeypatch.setattr(QuantModel, "save", save)
    done = cli(*words, "-o", "out", "--resume")
    assert done.code == 0, done.err
    assert Path("out").is_dir() and left_behind(place) == []


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


PLUG_IN = """
from sparsebit.quantization.observers import MinMax, register_observer

@register_observer("test_cli_own")
class Own(MinMax):
    def update(self, state, x):
        return super().update(state, x)
"""


def test_plug_ins_are_imported_before_the_config_is_read(cli: Cli, place: Path) -> None:
    (place / "mine.py").write_text(PLUG_IN)
    words = ("quantize", "net.py:make", *DATA, "--set", "A.OBSERVER.TYPE=test_cli_own", "--output", "q")
    done = cli(*words)
    assert done.code == 2 and "(--plug-in FILE on the command line)" in done.err
    try:
        done = cli(*words, "--plug-in", "mine.py")
        assert done.code == 0 and "export net.py:make --plug-in mine.py --quantized q" in done.out
        assert cli("profile", "net.py:make", "--quantized", "q", *DATA).code == 0
    finally:
        OBSERVERS.remove("test_cli_own")
    done = cli("profile", "net.py:make", "--quantized", "q", *DATA)
    assert done.code == 2 and "no observer named 'test_cli_own'\n  next: import the file that" in done.err


@pytest.mark.parametrize(
    ("plug_in", "message"),
    [
        ("gone.py", "no such file: gone.py"),
        ("", "--plug-in '' is not a file or a module"),
        ("gone", "no module named 'gone'"),
        ("wrong.py", "the file 'wrong.py' failed: ZeroDivisionError"),
    ],
)
def test_plug_ins_that_cannot_be_imported(cli: Cli, place: Path, plug_in: str, message: str) -> None:
    (place / "wrong.py").write_text("1 / 0")
    done = cli("schema", "--plug-in", plug_in)
    assert done.code == 2 and message in done.err
