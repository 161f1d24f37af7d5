"""The comparison of language models: its scripts are complete, its judge is exact, and results are kept and reused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.peers.language import part, score
from benchmarks.peers.row import Options, count_lines

HERE = Path(part.__file__).parent


def options(folder: Path) -> Options:
    return Options(venvs=folder, work=folder)


@pytest.mark.parametrize("name", [name for scripts in part.SCRIPTS.values() for name in scripts])
def test_every_script_marks_the_lines_that_a_user_writes(name: str) -> None:
    assert 3 < count_lines(part.script_of(name)) < 40
    assert part.METHODS[name]


@pytest.mark.parametrize("peer", [peer for peer in part.SCRIPTS if peer != "sparsebit"])
def test_every_requirement_is_pinned(peer: str) -> None:
    first, *rest = (HERE / "requirements" / f"{peer}.txt").read_text(encoding="utf-8").splitlines()
    assert first == "# --no-deps"
    assert rest
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in rest)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Embedding(11, 4)
        self.lm_head = nn.Linear(4, 11, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(rows))


def test_recorded_logits_come_back_window_after_window() -> None:
    torch.manual_seed(0)
    model = Model()
    rows = torch.randint(11, (4, 6))
    again = score.Recorded(model.model(rows), model.lm_head)
    assert torch.equal(torch.cat([again(rows[:2]), again(rows[2:])]), model(rows))


def test_weights_under_an_unknown_name_are_refused() -> None:
    model = Model()
    score.replace_weights(model, {"lm_head.weight": torch.zeros(11, 4)})
    assert not model.lm_head.weight.any()
    with pytest.raises(ValueError, match=r"the float model has no layer\.weight"):
        score.replace_weights(model, {"layer.weight": torch.zeros(1)})


def test_a_result_is_kept_until_what_it_was_given_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def run_script(*args: str, **others: object) -> dict[str, float]:
        calls.append(args[0])
        return {"perplexity": float(len(calls))}

    monkeypatch.setattr(part, "run_script", run_script)
    monkeypatch.setattr(part, "float_folder", lambda: tmp_path)
    monkeypatch.setattr(part, "tokens_of", lambda options: tmp_path)
    first = part.measure("float", options(tmp_path))
    assert part.measure("float", options(tmp_path)) == first
    monkeypatch.setitem(part.EVALUATION, "tokens", 1)
    assert part.measure("float", options(tmp_path))[0].measures["perplexity"] == 2
    monkeypatch.setenv("ONLY_KEPT", "1")
    assert part.measure("float", options(tmp_path))[0].measures["perplexity"] == 2
    assert part.measure("bitsandbytes", options(tmp_path))[0].failed.startswith("not measured yet")
    assert len(calls) == 2


def test_a_setting_that_fails_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("ImportError: no module named peer")

    monkeypatch.setattr(part, "solve", fail)
    rows = part.measure("bitsandbytes", options(tmp_path))
    assert {row.failed for row in rows} == {"ImportError: no module named peer"}
    assert [row.setting for row in rows] == [f"W{bits}, g64 NormalFloat, no data" for bits in (4, 3, 2)]
    assert not any(row.measures for row in rows)
