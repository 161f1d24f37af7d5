"""``sparsebit demo`` and what it hands over."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("onnxruntime")

from sparsebit.__main__ import main
from sparsebit.demo import run


def test_the_command_runs_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_demo", functools.partial(run.run_demo, seconds=0.02, recovery=1))
    assert main(["demo", "--output", str(tmp_path / "out"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in data["rows"]] == ["float", "pruned", "pruned, int8"]
    assert (tmp_path / "out" / "report.html").is_file()
