"""The schema of a pruning config: up to date, and right about what editors should mark."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparsebit.config.pruning.schema import PLACE, make_sconfig_schema, sconfig_schema_text
from sparsebit.config.pruning.sconfig import load_sconfig
from tests.config.quantization import test_schema

ROOT = Path(__file__).parents[3]
SPARSER = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}


@pytest.fixture(autouse=True)
def schema(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found = make_sconfig_schema()
    monkeypatch.setattr(test_schema, "SCHEMA", found)  # the validator there looks up references in it
    return found


def marked(data: dict[str, Any]) -> list[str]:
    return list(test_schema.errors(make_sconfig_schema(), data))


def test_the_file_is_up_to_date() -> None:
    told = "run: python -m sparsebit.config.pruning.schema"
    assert (ROOT / PLACE).read_text(encoding="utf-8") == sconfig_schema_text(), told


def test_the_command_writes_it(tmp_path: Path, schema: dict[str, Any]) -> None:
    place = tmp_path / "schema.json"
    command = [sys.executable, "-W", "error", "-m", "sparsebit.config.pruning.schema", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(place.read_text()) == schema


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    assert set(re.findall(r'"#/\$defs/(\w+)"', sconfig_schema_text())) <= set(schema["$defs"])


@pytest.mark.parametrize(
    "changes",
    [{}, {"TYPE": "Structed"}, {"NM": "2:4"}, {"BLOCK": [4, 4]}, {"SPECIFIC": [{"fc": {"RATIO": 0.1}}]}],
)
def test_what_loads_is_not_marked(changes: dict[str, Any]) -> None:
    data = {"SPARSER": {**SPARSER, **changes}, "IGNORE": ["fc"]}
    assert marked(data) == []
    assert marked(load_sconfig(data).to_dict()) == []


@pytest.mark.parametrize(
    "changes", [{"RATIO": 1}, {"TYPO": 1}, {"SCOPE": "model"}, {"ROUND_TO": 0}, {"OPTIONS": [1]}, {"TYPE": 3}]
)
def test_what_is_wrong_is_marked(changes: dict[str, Any]) -> None:
    assert marked({"SPARSER": {**SPARSER, **changes}})
