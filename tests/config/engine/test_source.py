"""What all kinds of config share in being read: the same mistakes get the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsebit.config import load_qconfig, load_sconfig
from sparsebit.config.engine.source import Kind, apply_overrides, check_top, read_file
from sparsebit.errors import ConfigError

TOLD: list[tuple[str, str]] = []
KIND = Kind(
    name="thing",
    title="Things",
    page="thing",
    least="A",
    keys="A and B",
    override="A.X=1",
    presets=lambda: ("small",),
    synonyms={"tiny": "small"},
    before_override=lambda _, key, value: TOLD.append((key, value)),
)


@pytest.mark.parametrize("load", [load_qconfig, load_sconfig])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the config is empty"),
        (b"- 1", "expected keys such as"),
        (b"1: 2", "expected a key in words, got 1"),
        (b"\xff", "not UTF-8 text"),
        (b"a: b: c", "line 1, column 5"),
    ],
)
def test_bad_files_are_told_alike(
    load: Callable[[Any], Any], content: bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        load(path)


def test_a_name_without_ending_may_be_a_preset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such preset or file; did you mean 'small'"):
        read_file("smal", KIND)
    with pytest.raises(ConfigError, match="no such preset or file; did you mean 'small'"):
        read_file("tiny", KIND)
    with pytest.raises(ConfigError, match="no such file; looked in"):
        read_file(tmp_path / "smal.yaml", KIND)


def test_overrides_are_set_and_remembered() -> None:
    data: dict[str, Any] = {"A": {"X": 0}}
    TOLD.clear()
    origins = apply_overrides(data, ["A.X=1", "B=[2]"], KIND)
    assert data == {"A": {"X": 1}, "B": [2]}
    assert origins == {"A.X": "override 'A.X=1'", "B": "override 'B=[2]'"}
    assert TOLD == [("X", "1"), ("B", "[2]")]
    with pytest.raises(ConfigError, match=r"(?s)2 problems.*KEY=VALUE such as A\.X=1.*A\.X is not a section"):
        apply_overrides(data, ["A", "A.X.Y=1"], KIND)


def test_what_contains_itself_is_refused() -> None:
    data: dict[str, Any] = {}
    data["A"] = data
    with pytest.raises(ConfigError, match="contains itself"):
        check_top(data, "thing", KIND)
