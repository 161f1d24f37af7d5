"""Quantizing from the command line: what is refused before the work."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sparsebit.__main__ import main
from sparsebit.quantization import QuantModel


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
