"""``sparsebit bench``: files that are refused, and how files are fed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.runtime.timing import Timings
from tests.cli.conftest import Cli
from tests.runtime.aborting import aborting_runtime

pytest.importorskip("onnxruntime")


def test_what_is_no_onnx_file_is_refused(cli: Cli, place: Path) -> None:
    Path("bad.onnx").write_text("hello")
    for words in (
        ("bench", "bad.onnx"),
        ("bench", "gone.onnx"),
        ("check", "bad.onnx", "net.py:make", "--input", "2x3x8x8"),
    ):
        done = cli(*words)
        assert done.code == 2, done
    assert cli("bench", "net.py:make").code == 2


def test_a_file_is_fed_by_order_and_by_name(cli: Cli, place: Path) -> None:
    assert cli("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx").code == 0
    assert cli("bench", "f.onnx", "--input", "images=2x3x8x8", "--seconds", "0.01").code == 0
    done = cli("bench", "f.onnx", "--input", "2x3x8x8", "--input", "2x3")
    assert done.code == 2 and "do not fit f.onnx" in done.err
    done = cli("check", "f.onnx", "torch.nn:Identity", "--input", "2x3x8")
    assert done.code == 2, done


@pytest.mark.parametrize("command", ["bench", "check"])
def test_a_runtime_that_aborts_is_told(cli: Cli, place: Path, command: str) -> None:
    assert cli("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx").code == 0
    model = [] if command == "bench" else ["net.py:make"]
    with aborting_runtime():
        done = cli(command, "f.onnx", *model, "--input", "2x3x8x8")
    assert done.code == 2, done
    assert "onnxruntime could not open the model: its process ended with SIGABRT: bad shape" in done.err


def test_a_file_that_is_slower_is_told_so_and_what_to_do(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx").code == 0
    Path("i.onnx").write_bytes(Path("f.onnx").read_bytes())
    for rounds, speed in (([2.0, 2.0], "0.50×"), ([2.0, 9.0], "slower, too noisy to tell by how much")):
        found = Timings({"f.onnx": [1.0, 1.0], "i.onnx": rounds}, {"f.onnx": 2, "i.onnx": 2})
        monkeypatch.setattr("sparsebit.runtime.compare_latency", lambda calls, found=found, **_: found)
        done = cli("bench", "f.onnx", "i.onnx", "--input", "2x3x8x8")
        assert (
            speed in done.out and "i.onnx: slower than f.onnx. In a quantized file, each operator" in done.out
        )
    found = Timings({"f.onnx": [2.0, 2.0], "i.onnx": [1.0, 1.0]}, {"f.onnx": 2, "i.onnx": 2})
    monkeypatch.setattr("sparsebit.runtime.compare_latency", lambda calls, **_: found)
    assert "slower" not in cli("bench", "f.onnx", "i.onnx", "--input", "2x3x8x8").out
