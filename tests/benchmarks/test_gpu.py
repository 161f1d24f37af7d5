"""The runner of the GPU benchmarks, with questions that need no GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.gpu import run


def rows(path: Path) -> Iterator[dict[str, Any]]:
    for number in range(3):
        yield {"number": number}
        assert json.loads(path.read_text(encoding="utf-8"))["rows"][-1] == {"number": number}


def ask(bandwidth: float, found: run.Found) -> None:
    run.show_rows(rows(found.path), found)


def ask_for_ever(bandwidth: float, found: run.Found) -> None:
    ask(bandwidth, found)
    time.sleep(60)


def ask_in_vain(bandwidth: float, found: run.Found) -> None:
    raise ValueError("no kernel")


def test_rows_are_in_the_file_when_a_question_fails_or_its_time_is_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    questions = {"fine": ask, "long": ask_for_ever, "wrong": ask_in_vain}
    monkeypatch.setattr(run, "QUESTIONS", questions)
    monkeypatch.setattr(run, "CALLS", {1: {"wrong": 5, "long": 1, "fine": 5}})
    monkeypatch.setattr(run, "measure_copy", lambda: 1e12)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    run.main(["--call", "1", "--out", str(tmp_path / "results")])
    found = {
        name: json.loads((tmp_path / "results" / f"gpu_{name}.json").read_text(encoding="utf-8"))
        for name in questions
    }
    assert found["fine"]["rows"] == found["long"]["rows"] == [{"number": n} for n in range(3)]
    assert "error" not in found["fine"] and found["fine"]["copy_bytes_per_second"] == 1e12
    assert "TimeIsUp" in found["long"]["error"] and "no kernel" in found["wrong"]["error"]


def test_calls_ask_known_questions_and_fit_ten_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    for number, asked in run.CALLS.items():
        assert asked.keys() <= run.QUESTIONS.keys()
        assert min(asked.values()) > 0 and sum(asked.values()) <= 570
        run.main(["--call", str(number), "--dry-run"])
        said = capsys.readouterr().out
        assert all(name in said for name in asked) and f"together {sum(asked.values())} s" in said


@pytest.mark.parametrize(
    ("words", "said"), [(["nothing"], "there is no question 'nothing'"), ([], "name a question, or a call")]
)
def test_what_is_not_understood_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.main(words)
    assert said in capsys.readouterr().err
