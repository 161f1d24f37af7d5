"""Engines: each says what it needs, and opens a file that is not there with an error, not with a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.formats import FORMATS

ENGINES = {name: kind.engine for name, kind in FORMATS.items() if kind.engine is not None}


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_is_complete(name: str, tmp_path: Path) -> None:
    engine = ENGINES[name]
    assert engine is not None and engine.name and engine.modules and 0 < engine.tolerance < 0.01
    if not missing_modules(engine):
        with pytest.raises(Exception):  # noqa: B017 - engines raise anything; the proof reports it
            engine.open(tmp_path / "nothing")
