"""Compiled models of the zoo: one graph that stays, in inference and in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.compile.run import SAMPLE, Outcome, examine, main

quiet = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@quiet
@pytest.mark.parametrize("training", [False, True])
def test_a_quantized_model_is_one_graph_that_is_compiled_once(training: bool) -> None:
    try:
        outcome = examine("nasty_bare_sequential", training=training)
    finally:
        torch._dynamo.reset()
    assert outcome.passed and outcome.graphs == (1, 1) and outcome.breaks == []


def test_what_does_not_pass() -> None:
    good = Outcome("it", False, [], (1, 1), 0.0, 1.0)
    assert good.passed
    for wrong in ({"breaks": ["a print"]}, {"graphs": (1, 2)}, {"difference": 0.1}, {"error": "it failed"}):
        assert not good._replace(**wrong).passed  # type: ignore[arg-type]


@quiet
def test_results_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.compile.run.examine",
        lambda name, training, **_: Outcome(name, training, [], (1, 1), 0.0, 1.0),
    )
    assert main(["--models", "resnet18", "--out", str(tmp_path / "it.json")]) == 0
    content = json.loads((tmp_path / "it.json").read_text(encoding="utf-8"))
    assert (content["passed"], content["of"], content["rows"][1]["training"]) == (2, 2, True)
    assert len(SAMPLE) == 16
