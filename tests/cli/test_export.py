"""``sparsebit export``: axes, and files that survive a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, left_behind

pytest.importorskip("onnxruntime")


def test_a_failed_export_leaves_the_file_that_was_there(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx")
    assert cli(*words).code == 0
    good = Path("f.onnx").read_bytes()
    monkeypatch.setattr(sys.modules["sparsebit.export.onnx_export"], "_check", _interrupted)
    assert cli(*words, "--weights", "none.pt").code == 2
    assert cli(*words).code == 130
    assert Path("f.onnx").read_bytes() == good and left_behind(place) == []


def test_dynamic_axes_can_be_typed(cli: Cli, place: Path) -> None:
    import onnx

    words = ("export", "net.py:make", "--input", "2x3x8x8", "-o", "f.onnx")
    assert cli(*words, "--dynamic", "images=0,2").code == 0
    dims = onnx.load("f.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch", 3, "axis_2", 8]
    wrong = cli(*words, "--dynamic", "images=first")
    assert wrong.code == 2 and "expected NAME=AXES such as input_ids=0,1" in wrong.err
    assert "not an input or output" in cli(*words, "--dynamic", "image=0").err
    extra = cli("export", "net.py:make", "--input", "2x3x8x8", "--input", "2x3x8x8", "-o", "g.onnx")
    assert extra.code == 2 and "does not fit" in extra.err


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt
