"""``sparsebit compress``: finds, says, resumes, and promises nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, left_behind

pytest.importorskip("onnxruntime")

DATA = ("--data", "net.py:batches")


def test_compress_finds_says_and_resumes(cli: Cli, place: Path) -> None:
    words = ("compress", "net.py:make", *DATA, "--max-drop", "0.5", "--size", "0.5", "--time-budget", "60")
    done = cli(*words, "-o", "found", "--report", "r.html", "--json")
    assert done.code == 0 and done.data["met"] and "QUANTIZE" in done.data["recipe"], done.err
    assert Path("found", "recipe.yaml").is_file() and "recipe.yaml" in Path("r.html").read_text()
    again = cli(*words, "-o", "found")
    assert again.code == 2 and "--resume" in again.err
    resumed = cli(*words, "-o", "found", "--resume", "--json")
    assert resumed.code == 0 and resumed.data["best"]["name"] == done.data["best"]["name"]
    exported = cli("export", "net.py:make", "--quantized", "found/quantized", *DATA, "-o", "found.onnx")
    assert exported.code == 0, exported.err
    assert left_behind(place) == []


def test_compress_refuses_to_promise(cli: Cli) -> None:
    words = ("compress", "net.py:make", *DATA, "--max-drop", "0", "--size", "0.001", "--time-budget", "1")
    done = cli(*words, "-o", "found", "--json")
    assert done.code == 1 and not done.data["met"] and done.data["limits"]
    assert cli("compress", "net.py:make", *DATA, "--size", "-1", "-o", "other").code == 2


def test_an_error_in_finetuning_is_the_users_to_see(cli: Cli) -> None:
    done = cli(
        "compress", "net.py:make", *DATA, "--finetune", "net.py:broken_training", "--size", "0.05", "-o", "x"
    )
    assert done.code == 2 and "the function 'net.py:broken_training' failed: ZeroDivisionError" in done.err
