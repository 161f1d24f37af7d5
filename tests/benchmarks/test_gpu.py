"""The runner of the GPU benchmarks, with questions that need no GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from benchmarks.gpu import fake_quant, resnet50, resnet50_forms, run


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
    assert found["long"]["error"].endswith("TimeIsUp: the time of this question is up")
    assert found["wrong"]["error"] == "ValueError: no kernel"


def test_calls_ask_known_questions_and_fit_ten_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    for number, asked in run.CALLS.items():
        assert asked.keys() <= run.QUESTIONS.keys()
        assert min(asked.values()) > 0 and sum(asked.values()) <= 530
        run.main(["--call", str(number), "--dry-run"])
        said = capsys.readouterr().out
        assert all(name in said for name in asked) and f"together {sum(asked.values())} s" in said


def test_pact_is_timed_with_and_without_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fake_quant, "TIMED", {name: fake_quant.Case((2, 3, 4, 5), "tensor") for name in fake_quant.TIMED}
    )
    called: list[bool] = []

    def time_of(step: Any, graph: bool = False) -> float:
        step()
        called.append(fake_quant.snapping.USE_KERNELS)
        return 6.0

    rows = list(fake_quant.measure_pact(1e6, time_of, "cpu"))
    assert called == [True, True, False, False] * 2 and fake_quant.snapping.USE_KERNELS
    assert [row["fused_over_floor"] for row in rows] == pytest.approx(
        [6 / (5 * 120 * size) for size in (4, 2)]
    )


@pytest.mark.parametrize(
    ("words", "said"), [(["nothing"], "there is no question 'nothing'"), ([], "name a question, or a call")]
)
def test_what_is_not_understood_is_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.main(words)
    assert said in capsys.readouterr().err


def test_the_floor_of_a_step_is_the_float_step_and_what_quantizers_move() -> None:
    floats: dict[Any, dict[str, Any]] = {}
    rows = [{"ms": 10.0, "floor_bytes": 0}, {"ms": 15.0, "floor_bytes": 2e9}]
    found = [run.add_floor(row, floats, True, 1e12) for row in rows]
    assert [row["floor_ms"] for row in found] == [10.0, 12.0]


def test_every_quantized_tensor_counts_for_the_floor() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1))
    model = resnet50.quantized(net, "lsq", 4, torch.randn(8, 3, 6, 6))
    assert len(model.quantizers) == 4
    weights, activations = 4 * 3 * 9 + 4 * 4, 3 * 36 + 4 * 16
    assert resnet50.quantized_bytes(model, torch.randn(2, 3, 6, 6)) == 4 * (weights + 2 * activations)


def test_the_error_of_a_process_is_one_line_of_its_log() -> None:
    log = 'Traceback (most recent call last):\n  File "x.py", line 3\nRuntimeError: no memory\nDebugging:\n- a hint\n\n'
    assert resnet50_forms.last_error(log) == "RuntimeError: no memory"
    assert resnet50_forms.last_error(
        "it is compiled\n"
    ) == "it is compiled" and not resnet50_forms.last_error("")
