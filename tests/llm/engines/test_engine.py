"""Engines: each says what it needs, and opens a file that is not there with an error, not with a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit.llm.engines.engine import missing_modules, prompt_and_steps
from sparsebit.llm.formats import FORMATS

ENGINES = {name: kind.engine for name, kind in FORMATS.items()}


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_is_complete(name: str, tmp_path: Path) -> None:
    engine = ENGINES[name]
    assert engine.name and engine.modules and 0 < engine.tolerance < 0.01
    if not missing_modules(engine):
        with pytest.raises(Exception):  # noqa: B017 - engines raise anything; the proof reports it
            engine.open(tmp_path / "nothing")


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_engines_get_a_prompt_and_then_single_ids(count: int) -> None:
    parts = prompt_and_steps(torch.arange(count))
    assert torch.equal(torch.cat(parts), torch.arange(count))
    assert [len(part) for part in parts] == [(count + 1) // 2, *[1] * (count // 2)]
