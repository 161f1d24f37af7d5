"""``sparsebit schema``: schemas, and presets to start from."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Cli

DATA = ("--data", "net.py:batches")


def test_schemas_and_presets(cli: Cli, place: Path) -> None:
    assert "$defs" in json.loads(cli("schema").out)
    assert cli("schema", "pruning", "--json").data["schema"]["title"] == "Sparsebit pruning config"
    assert cli("schema", "w4a8", "-o", "mine.yaml").code == 0
    assert cli("quantize", "net.py:make", *DATA, "--config", "mine.yaml", "-o", "w4").code == 0


def test_language_models_have_a_schema_and_presets_of_their_own(cli: Cli, place: Path) -> None:
    assert cli("schema", "llm", "--json").data["schema"]["title"] == "Sparsebit language-model config"
    assert "GROUP_SIZE: 32" in cli("schema", "w4_g32").out
