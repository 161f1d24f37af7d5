"""Each command on a user's own model: what it writes, what it says, and the way from one to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, left_behind

pytest.importorskip("onnxruntime")

DATA = ("--data", "net.py:batches")


def test_the_way_from_quantize_to_bench(cli: Cli, place: Path) -> None:
    words = ("--config", "int8_onnxruntime", "--set", "A.OBSERVER.TYPE=minmax", "--test", "net.py:batches")
    data = cli("quantize", "net.py:make", *DATA, *words, "--report", "r.html", "-o", "int8", "--json").data
    assert data["ok"] and len(data["weights"]) == 3 and len(data["accuracy"]) == 2
    assert "net.py:make was quantized" in Path("r.html").read_text()
    profile = cli("profile", "net.py:make", "--quantized", "int8", *DATA, "--sort", "sqnr")
    assert profile.code == 0 and "features.0" in profile.out
    assert {
        layer["name"]
        for layer in cli("profile", "net.py:make", "--quantized", "int8", *DATA, "--json").data["layers"]
    }
    done = cli("export", "net.py:make", "--quantized", "int8", *DATA, "-o", "int8.onnx", "--json")
    assert done.data["check"]["problems"] == [] and Path("int8.onnx").stat().st_size == done.data["bytes"]
    assert cli("export", "net.py:make", "--input", "2x3x8x8", "-o", "float.onnx").code == 0
    assert cli("check", "int8.onnx", "net.py:make", "--quantized", "int8", *DATA).code == 0
    assert cli("check", "float.onnx", "net.py:make", "--input", "2x3x8x8").code == 0
    rows = cli("bench", "float.onnx", "int8.onnx", "--seconds", "0.02", "--threads", "1", "--json").data[
        "rows"
    ]
    assert [row["what"] for row in rows] == ["float.onnx", "int8.onnx"] and rows[0]["speedup"] == 1
    assert cli("bench", "net.py:make", "int8.onnx", *DATA, "--batch", "4", "--seconds", "0.02").code == 0
    assert left_behind(place) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("quantize", "net.py:make", "--data", "net.py:breaks_off", "-o", "x"), "OSError: the disk is gone"),
        (("quantize", "net.py:make", "--data", "net.py:changes_shape", "-o", "x"), "expected input"),
        (("quantize", "net.py:make", *DATA, "--test", "net.py:changes_shape", "-o", "x"), "expected input"),
        (("bench", "net.py:make", "--input", "1x4x8x8"), "called with this input, failed"),
        (("quantize", "net.py:leaves", *DATA, "-o", "x"), "failed: SystemExit: 7"),
        (("compress", "net.py:make", *DATA, "-o", "x", "--finetune", "net.py:words"), "is not a function"),
        (("compress", "net.py:make", *DATA, "-o", "x", "--max-drop", "nan"), "0 or more"),
        (("compress", "net.py:make", *DATA, "-o", "x", "--metric", "net.py:not_a_number"), "is NaN"),
    ],
)
def test_failures_of_the_users_data_are_not_called_bugs(
    cli: Cli, words: tuple[str, ...], message: str
) -> None:
    done = cli(*words)
    assert done.code == 2 and message in done.err, done
    assert not Path("x").exists()


TWO_INPUTS = """
import torch
from torch import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(2, 8)

    def forward(self, image, meta):
        return self.a(image) + self.b(meta)


pairs = [(torch.randn(4, 4), torch.randn(4, 2)) for _ in range(2)]
"""


def test_a_model_with_two_inputs(cli: Cli, place: Path) -> None:
    """Batches of (image, meta) without labels work; one input is the same message everywhere."""
    Path("two.py").write_text(TWO_INPUTS)
    assert cli("quantize", "two.py:Two", "--data", "two.py:pairs", "-o", "q").code == 0
    assert cli("bench", "two.py:Two", "--data", "two.py:pairs", "--batch", "3", "--seconds", "0.01").code == 0
    for words in (("export", "-o", "x.onnx"), ("bench",), ("capture",), ("prune", "-o", "p")):
        done = cli(words[0], "two.py:Two", "--input", "2x4", *words[1:])
        assert (
            done.code == 2 and "the input does not fit Two: missing a required argument: 'meta'" in done.err
        )
        assert "forward(image, meta)" in done.err and "--input NAME=SHAPE" in done.err


def test_a_folder_of_another_model_is_named(cli: Cli, place: Path) -> None:
    Path("two.py").write_text(TWO_INPUTS)
    assert cli("quantize", "two.py:Two", "--data", "two.py:pairs", "-o", "q").code == 0
    done = cli("export", "net.py:make", "--quantized", "q", "--input", "2x3x8x8", "-o", "x.onnx")
    assert done.code == 2 and "'q' was saved from another model" in done.err
    assert "expected: a Two" in done.err and "got:      a Net" in done.err
